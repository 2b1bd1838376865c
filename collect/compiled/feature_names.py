"""The names of what compiled code shows: the ``static.<name>`` columns of a run table."""

CLASSES: dict[str, str] = {
    "mma": "matrix instructions of any generation",
    "async_copy": "copies from global to shared memory past the registers, bulk ones included",
    "global_load": "loads from global memory",
    "global_store": "stores to global memory",
    "shared_load": "loads from shared memory, of matrix fragments too",
    "shared_store": "stores to shared memory, of matrix fragments too",
    "local_load": "loads of a thread's own memory: spilled registers",
    "local_store": "stores to a thread's own memory: spilled registers",
    "tensor_memory": "accesses to tensor memory",
    "atomic": "atomic operations and reductions in memory",
    "shuffle": "exchange between the threads of a warp",
    "barrier": "barriers, fences and waits",
    "float": "floating-point arithmetic of 32 bits and fewer outside matrix units",
    "double": "floating-point arithmetic of 64 bits",
    "special": "exponentials, logarithms, reciprocals, roots, sines",
    "convert": "conversions between number formats",
    "integer": "integer arithmetic, logic, comparison, selection, permutation",
    "move": "moves, constants, special registers",
    "uniform": "instructions of the scalar unit, one for a whole warp",
    "control": "branches, calls, exits",
    "other": "instructions of no class that is known here",
}
"""Classes of machine instructions; NOPs are not counted."""

SPECIALIZATION: dict[str, str] = {
    "pointers": "arguments that are pointers",
    "pointers_aligned": "of those, known to be multiples of 16",
    "integers": "integer arguments that are not compile-time constants",
    "integers_divisible": "of those, known to be multiples of 16",
    "integers_one": "integer arguments that are 1, and so were compiled in",
}
"""What the compiler was told about the arguments."""

TTGIR: dict[str, str] = {
    "warps": "warps of one block, those of all specialised groups together",
    "pipeline_depth": "buffers in turn of the deepest software pipeline; 1 without one",
    "shared_alloc_bytes": "buffers in shared memory that the code names, bytes in sum",
    "dots": "matrix products",
    "dot_bits": "bits of one element of their operands; 0 without any",
    "mma_version": "generation of the matrix unit: 2 mma, 3 wgmma, 5 tcgen05; AMD's MFMA; 0 none",
    "mma_m": "rows of one matrix instruction",
    "mma_n": "columns of one matrix instruction",
    "mma_k": "depth of one matrix instruction; 0 where the compiler does not say",
    "async_copies": "copies from global to shared memory past the registers",
    "async_waits": "waits for such copies",
    "convert_layouts": "changes of layout, which go through shared memory or shuffles",
    "shared_loads": "reads of whole tiles from shared memory",
    "shared_stores": "writes of whole tiles to shared memory",
    "reductions": "reductions and scans",
    "atomics": "atomic operations",
    "loops": "loops",
    "load_bytes": "bytes that all loads ask for, each counted once",
    "store_bytes": "bytes that all stores write, each counted once",
    "dot_flops": "operations of all matrix products, each counted once (an FMA counts two)",
    "float_ops": "floating-point operations on elements of tiles, each counted once",
    "loop_load_bytes": "bytes loaded per iteration of the hot loop",
    "loop_store_bytes": "bytes stored per iteration of the hot loop",
    "loop_dot_flops": "operations of matrix products per iteration of the hot loop",
    "loop_float_ops": "floating-point operations on elements per iteration of the hot loop",
    "loop_intensity": "operations per byte loaded or stored in the hot loop; 0 without any",
    "loop_convert_layouts": "changes of layout in the hot loop",
    "carried_registers": "registers per thread of what the hot loop carries along",
    "tile_registers": "registers per thread of the largest tile",
    "load_width_bytes": "contiguous bytes per thread of loads, by layout, at most 16, mean",
}
"""What Triton's GPU-level intermediate code shows; the hot loop is the one with most operations."""

SHARED: dict[str, str] = {
    "shared_bytes": "shared memory of one block, bytes",
}
"""Known at both tiers where this release of Triton lets us ask for it early."""

BINARY: dict[str, str] = {
    "registers": "registers per thread; AMD: vector registers of both kinds",
    "accumulator_registers": "AMD: of those, accumulation registers",
    "scalar_registers": "AMD: scalar registers per wave",
    "stack_bytes": "a thread's own memory, bytes",
    "spill_load_bytes": "NVIDIA: bytes of a thread read back from spilled registers, in the code",
    "spill_store_bytes": "NVIDIA: bytes of a thread written for spilled registers, in the code",
    "spilled_registers": "AMD: vector registers that did not fit",
    "tensor_memory": "columns of tensor memory",
    "scratch_bytes": "global scratch memory of one block, bytes",
    "code_bytes": "size of the machine code",
    "instructions": "machine instructions, NOPs not counted",
    **{f"ops_{name}": f"of those, {what}" for name, what in CLASSES.items()},
    "global_width_bytes": "bytes of one thread's access to global memory, mean over instructions",
    "load_access_bytes": "the same of loads and asynchronous copies alone",
    "store_access_bytes": "the same of stores alone",
}
"""What the machine code shows."""

OCCUPANCY: dict[str, str] = {
    "fits": "1 if the target can launch it",
    "ctas_per_sm": "blocks resident on one multiprocessor at once",
    "warps_per_sm": "their warps",
    "occupancy": "of the most warps there can be",
    "limited_by_registers": "1 if registers keep it from holding more blocks",
    "limited_by_shared": "1 if shared memory does",
    "limited_by_tensor_memory": "1 if tensor memory does",
    "limited_by_warps": "1 if the number of warps does",
    "limited_by_ctas": "1 if the number of blocks does",
}
"""What follows for one multiprocessor."""

FEATURES: dict[str, str] = {**SPECIALIZATION, **TTGIR, **SHARED, **BINARY, **OCCUPANCY}
"""All names; what a target or a tier does not show is absent, never guessed."""
