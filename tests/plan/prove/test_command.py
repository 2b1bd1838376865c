"""Commands of settings: the plan's with flags, and a user's with placeholders."""

from dataclasses import replace

import pytest

from foretune.errors import UsageError
from foretune.plan import find_system
from foretune.plan.prove.command import PlannedCommand, UserCommand, set_flag
from foretune.plan.prove.setting import Setting, SettingSpace, around


@pytest.fixture
def on_gpu(deployment):
    return replace(deployment, system=find_system("h100_sxm"))


def test_planned_command_has_flags_of_setting(on_gpu, tmp_path):
    maker = PlannedCommand("vllm", extra=("--load-format", "dummy"))
    setting = Setting(
        replace(on_gpu, concurrency=4, step_tokens=512),
        requests=4,
        cache_share=0.95,
        chunked=False,
        graphs=False,
        others=(("--block-size", 32),),
    )
    words = maker.command(setting, port=8123, folder=tmp_path).words
    text = " ".join(words)
    assert "--port 8123" in text
    assert "--max-num-seqs 4 " in text
    assert "--max-num-batched-tokens 512" in text
    assert "--gpu-memory-utilization 0.95" in text
    assert "--no-enable-chunked-prefill" in words
    assert "--enforce-eager" in words
    assert "--no-enable-prefix-caching" in words
    assert "--block-size 32 --load-format dummy" in text


def test_planned_command_cpu_has_own_flags(deployment, tmp_path):
    maker = PlannedCommand("vllm", on_cpu=True)
    setting = Setting(deployment, requests=8, cache_gib=3.0, threads=1)
    command = maker.command(setting, port=8123, folder=tmp_path)
    assert command.environment == {
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_CPU_OMP_THREADS_BIND": "0-0",
    }
    assert "--gpu-memory-utilization" not in command.words
    assert "--enforce-eager" not in command.words
    assert command.program[:2] == ["vllm", "serve"]
    assert "--dtype bfloat16" in str(command)


@pytest.mark.parametrize(
    ("cpus", "threads", "bound"),
    [
        ((1,), 1, "1-1"),  # the first core is kept for something else
        ((2, 3), 2, "2-3"),
        ((0, 2, 4), 2, "0,2"),
    ],
)
def test_planned_command_threads_stay_on_usable_cores(deployment, tmp_path, cpus, threads, bound):
    maker = PlannedCommand("vllm", on_cpu=True, cpus=cpus)
    setting = Setting(deployment, requests=8, cache_gib=3.0, threads=threads)
    command = maker.command(setting, port=8123, folder=tmp_path)
    assert command.environment["VLLM_CPU_OMP_THREADS_BIND"] == bound


def test_planned_command_listens_on_this_machine_alone(on_gpu, tmp_path):
    setting = Setting(on_gpu, requests=4)
    words = PlannedCommand("vllm").command(setting, port=8123, folder=tmp_path).words
    assert words[words.index("--host") + 1] == "127.0.0.1"

    # Whoever names another address gets it.
    opened = PlannedCommand("vllm", extra=("--host", "0.0.0.0"))
    words = opened.command(setting, port=8123, folder=tmp_path).words
    assert words.count("--host") == 1
    assert words[words.index("--host") + 1] == "0.0.0.0"


def test_planned_command_part_of_gib_is_refused(deployment, tmp_path):
    maker = PlannedCommand("vllm", on_cpu=True)
    setting = Setting(deployment, requests=8, cache_gib=0.5)
    with pytest.raises(UsageError, match="whole GiB"):
        maker.command(setting, port=8123, folder=tmp_path)


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_planned_command_other_engines_need_files(on_gpu, tmp_path, engine):
    maker = PlannedCommand(engine)
    settings = around([replace(on_gpu, backend=engine)], maker.knobs, {}, cores=0)
    command = maker.command(settings.setting(settings.planned), 8123, tmp_path / "files")
    assert "8123" in command.words
    assert (command.folder is not None) == (engine == "trtllm")
    if command.folder:
        assert (command.folder / "trtllm.yaml").exists()
        remote = PlannedCommand(engine, host="box")
        with pytest.raises(UsageError, match=r"reads trtllm.yaml on box"):
            remote.command(settings.setting(settings.planned), 8123, tmp_path)


def test_placeholders_are_knobs(deployment, tmp_path):
    maker = UserCommand("serve -p {port} -np {requests} -ub {step_tokens} -c {cache_tokens}")
    assert set(maker.knobs) == {"requests", "step_tokens", "cache_gib"}
    setting = Setting(replace(deployment, step_tokens=64), requests=2, cache_gib=1.0)
    words = maker.command(setting, port=9000, folder=tmp_path).words
    assert words[:7] == ["serve", "-p", "9000", "-np", "2", "-ub", "64"]
    assert int(words[-1]) > 1000
    assert maker.fixed_port is None


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "--command is empty"),
        ("serve {batch}", r"\{batch\}: placeholders are \{port\}"),
        ("serve {", "Single"),
        ("serve 'open", "No closing quotation"),
    ],
)
def test_wrong_templates_are_refused(template, message):
    with pytest.raises(UsageError, match=message):
        UserCommand(template)


def test_user_command_without_port_has_its_own():
    assert UserCommand("serve --port 7000").fixed_port == 7000
    assert UserCommand("serve").fixed_port == 8000


def test_set_flag_replaces_or_appends():
    assert set_flag(["serve", "--a", "1"], "--a", "2") == ["serve", "--a", "2"]
    assert set_flag(["serve"], "--a", "2") == ["serve", "--a", "2"]


def test_settings_begin_with_the_plans_own(on_gpu):
    settings = around([on_gpu], PlannedCommand("vllm").knobs, {}, cores=0)
    planned = settings.planned
    assert planned["requests"] == 8
    assert planned["step_tokens"] == on_gpu.step_tokens
    assert planned["cache_share"] == 0.9
    assert planned in settings.space
    setting = settings.setting(planned)
    assert setting.chunked
    assert not setting.prefix_cache
    # Without chunks, every prompt fits in a step.
    longest = on_gpu.longest_context
    assert all(
        config["chunked"] == "on" or config["step_tokens"] >= longest for config in settings.space
    )


def test_own_values_replace_the_usual_ones(deployment):
    given = {"requests": [16], "--block-size": [16, 32]}
    settings = around([deployment], ("requests",), given, cores=2)
    assert len(settings.space) == 4
    assert settings.setting(settings.planned).others == (("--block-size", 16),)
    with pytest.raises(UsageError, match="does not set threads"):
        around([deployment], ("requests",), {"threads": [1]}, cores=2)


def test_memory_grows_with_the_cache_and_the_step(deployment):
    small = Setting(deployment, requests=8, cache_gib=1.0)
    larger_cache = replace(small, cache_gib=2.0)
    larger_step = replace(small, deployment=replace(deployment, step_tokens=8), requests=1)
    assert larger_cache.memory_gib == pytest.approx(small.memory_gib + 1.0)
    assert larger_step.memory_gib < small.memory_gib
    assert larger_cache.cache_tokens == pytest.approx(2 * small.cache_tokens)


def test_setting_space_without_knob_has_one_setting(deployment):
    space = SettingSpace({"only": deployment}, {})
    assert len(space.space) == 1
    assert space.setting(space.planned).requests == 8
