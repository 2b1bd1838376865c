"""The small transformer: what it computes, and that cutting it changes nothing."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from plan_parallel import decoder
from plan_parallel.decoder import RankExchange, make_shard
from plan_parallel.parallel import small_model

MODEL = small_model(256, 2, 2, 96)
TOKENS = torch.randint(MODEL.vocab, (3, 5), generator=torch.Generator().manual_seed(1))


class Meeting:
    """Exchanges between threads, in the place of processes."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.parts = [None] * ranks
        self.barrier = threading.Barrier(ranks)

    def exchange(self, rank):
        def share(part):
            self.parts[rank] = part.clone()
            self.barrier.wait(30)
            found = list(self.parts)
            self.barrier.wait(30)
            return found

        return RankExchange(
            rank, self.ranks, lambda x: sum(share(x)), lambda x: torch.cat(share(x), dim=-1)
        )


def run(shard, entering=TOKENS, start=0, cache=None):
    with torch.inference_mode():
        cache = cache or shard.empty_cache(len(entering), 16)
        return decoder.forward(shard, entering, cache, start)


def by_hand(shard, tokens):
    """Return the logits after ``tokens`` of one request, position by position, head by head."""
    model = MODEL
    dim = MODEL.head_dim
    x = shard.embedding[tokens].double().numpy()
    weights = [{k: v.double().numpy() for k, v in vars(layer).items()} for layer in shard.layers]

    def norm(rows):
        return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + decoder.EPSILON)

    def turned(vector, position):
        half = dim // 2
        angle = position * decoder.ROPE_BASE ** (-np.arange(0, dim, 2) / dim)
        pairs = (vector[:half] + 1j * vector[half:]) * np.exp(1j * angle)
        return np.concatenate([pairs.real, pairs.imag])

    for w in weights:
        split = (norm(x) @ w["qkv"].T).reshape(len(x), -1, dim)
        mixed = np.zeros((len(x), model.heads, dim))
        for t in range(len(x)):
            for h in range(model.heads):
                shared = model.heads + h * model.kv_heads // model.heads
                query = turned(split[t, h], t)
                scores = np.array([query @ turned(split[s, shared], s) for s in range(t + 1)])
                weight = np.exp(scores / dim**0.5)
                mixed[t, h] = weight / weight.sum() @ split[: t + 1, shared + model.kv_heads]
        x = x + mixed.reshape(len(x), -1) @ w["out"].T
        left, right = np.split(norm(x) @ w["up"].T, 2, axis=-1)
        x = x + (left / (1 + np.exp(-left)) * right) @ w["down"].T
    return norm(x[-1]) @ shard.head.double().numpy().T


def test_it_is_a_transformer():
    shard = make_shard(MODEL, RankExchange())
    found = run(shard)
    for request in range(len(TOKENS)):
        expected = by_hand(shard, TOKENS[request])
        assert found[request].numpy() == pytest.approx(expected, abs=1e-3)


def test_answers_continue_prompts():
    shard = make_shard(MODEL, RankExchange())
    cache = shard.empty_cache(len(TOKENS), 16)
    run(shard, TOKENS[:, :4], 0, cache)
    step = run(shard, TOKENS[:, 4:], 4, cache)
    assert torch.allclose(step, run(shard), atol=1e-4)


def test_slices_of_layers_add_up():
    whole = run(make_shard(MODEL, RankExchange()))
    meeting = Meeting(2)
    found = [None, None]

    def work(rank):
        found[rank] = run(make_shard(MODEL, meeting.exchange(rank)))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for logits in found:
        assert torch.allclose(logits, whole, atol=1e-4)


def test_stages_follow_one_another():
    first, second = (make_shard(MODEL, RankExchange(), stage, 2) for stage in range(2))
    assert (first.head, second.embedding) == (None, None)
    assert len(first.layers) == len(second.layers) == 1
    between = run(first)
    assert torch.allclose(run(second, between), run(make_shard(MODEL, RankExchange())), atol=1e-4)


def test_another_seed_is_another_model():
    one, other = (run(make_shard(MODEL, RankExchange(), seed=seed)) for seed in (0, 1))
    assert not torch.allclose(one, other, atol=1e-2)
