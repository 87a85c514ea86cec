"""What PyTorch, Triton, CuPy and JAX launch: operators with digests of their results.

    frameworks.py torch|train|short|all|stress|gemms|compiled|triton|cupy|jax|numba

Prints one JSON object on the last line: a digest for each operator, and numbers that the probes'
counts are held to.  Exit code 77 if the framework
is not installed.
"""

# Each framework is imported where it is used; every operator is a lambda, so that rows read alike.
# ruff: noqa: PLC0415, PLW0108

import hashlib
import json
import os
import sys

MISSING = 77


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def host(tensor):
    return tensor.detach().float().contiguous().cpu().numpy()


def torch_operators():
    import torch
    import torch.nn.functional as f

    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True, warn_only=True)
    x = torch.randn(512, 768, device="cuda")
    y = torch.randn(512, 768, device="cuda")
    images = torch.randn(8, 16, 32, 32, device="cuda")
    weights = torch.randn(32, 16, 3, 3, device="cuda")
    table = torch.randn(1000, 64, device="cuda")
    index = torch.randint(0, 1000, (4096,), device="cuda")
    heads = torch.randn(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
    square = torch.randn(1024, 1024, device="cuda")
    for name, run in {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "div": lambda: x / (y.abs() + 1),
        "exp": lambda: torch.exp(x),
        "gelu": lambda: f.gelu(x),
        "silu": lambda: f.silu(x),
        "relu": lambda: torch.relu(x),
        "where": lambda: torch.where(x > 0, x, y),
        "clamp": lambda: x.clamp(-1, 1),
        "pow": lambda: x.abs() ** 1.5,
        "cast_bf16": lambda: x.bfloat16(),
        "cast_half": lambda: x.half(),
        "sum": lambda: x.sum(),
        "sum_rows": lambda: x.sum(1),
        "mean": lambda: x.mean(0),
        "max": lambda: x.max(1).values,
        "argmax": lambda: x.argmax(1),
        "all": lambda: (x > -100).all(),
        "any": lambda: (x > 100).any(),
        "norm": lambda: x.norm(),
        "var": lambda: x.var(1),
        "sort": lambda: x.flatten()[:100_000].sort().values,
        "topk": lambda: x.topk(5, 1).values,
        "cumsum": lambda: x.cumsum(1),
        "index_select": lambda: table.index_select(0, index),
        "gather": lambda: x.gather(1, (x.argsort(1) % 700)),
        "masked_fill": lambda: x.masked_fill(y > 0, 0),
        "cat": lambda: torch.cat([x, y], 1),
        "transpose": lambda: x.t().contiguous(),
        "softmax": lambda: f.softmax(x, 1),
        "log_softmax": lambda: f.log_softmax(x, 1),
        "layer_norm": lambda: f.layer_norm(x, (768,)),
        "batch_norm": lambda: f.batch_norm(images, None, None, training=True),
        "conv2d": lambda: f.conv2d(images, weights, padding=1),
        "max_pool": lambda: f.max_pool2d(images, 2),
        "interpolate": lambda: f.interpolate(images, scale_factor=2.0),
        "embedding": lambda: f.embedding(index, table),
        "cross_entropy": lambda: f.cross_entropy(x, index[:512] % 768),
        "matmul_fp32": lambda: square @ square,
        "matmul_fp16": lambda: square.half() @ square.half(),
        "matmul_bf16": lambda: square.bfloat16() @ square.bfloat16(),
        "bmm": lambda: torch.bmm(heads[0], heads[0].transpose(1, 2)),
        "attention": lambda: f.scaled_dot_product_attention(heads, heads, heads),
        "unique": lambda: torch.unique(index),
        "nonzero": lambda: torch.nonzero(x > 2),
    }.items():
        for _ in range(3):
            result = run()
        yield name, digest(host(result))
    start = [square[:96, :96], square[0, :33], square[1, :1]]
    for name, make in {
        "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
        "adam": lambda ps: torch.optim.Adam(ps, lr=0.01, foreach=False),
        "adam_foreach": lambda ps: torch.optim.Adam(ps, lr=0.01, foreach=True),
        "adamw_fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True),
    }.items():
        parameters = [each.clone().requires_grad_() for each in start]
        optimizer = make(parameters)
        for step in range(5):
            for each in parameters:
                each.grad = each.detach() * (step + 1) - 0.5
            optimizer.step()
        yield name, digest(host(torch.cat([each.flatten() for each in parameters])))


def torch_all():
    """Of one block, whose kernel has an EXIT under two predicates."""
    import torch

    for size in (1, 33, 700, 5000):
        x = torch.ones(size, device="cuda")
        for number in range(50):
            yield f"all_{size}_{number}", digest(host((x > 0).all()))


def torch_stress():
    """Small tensors in several streams; integers, so that what is right is known."""
    import numpy
    import torch

    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    sizes = [1 + 97 * number for number in range(STREAMS)]
    tensors = [torch.arange(size, dtype=torch.int32, device="cuda") for size in sizes]
    torch.cuda.synchronize()
    for round_ in range(ROUNDS):
        for stream, tensor in zip(streams, tensors, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(EACH):
                    tensor.mul_(3)
                    tensor.add_(round_)
    torch.cuda.synchronize()
    for size, tensor in zip(sizes, tensors, strict=True):
        expected = numpy.arange(size, dtype=numpy.uint32)
        for round_ in range(ROUNDS):
            for _ in range(EACH):
                expected = expected * numpy.uint32(3) + numpy.uint32(round_)
        found = tensor.cpu().numpy().view(numpy.uint32)
        yield f"wrong_{size}", int((found != expected).sum())
        yield f"size_{size}", digest(found)
    yield "launches", 2 * STREAMS * ROUNDS * EACH


STREAMS, ROUNDS, EACH = 8, 64, 100  # of two launches each: 102,400


def torch_training(steps=200):
    import torch
    from torch import nn

    torch.manual_seed(11)
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Linear(128, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(16, 32, 128, device="cuda")
    goal = torch.randint(0, 64, (16 * 32,), device="cuda")
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data).flatten(0, 1), goal)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    for step, loss in enumerate(losses):
        yield f"loss_{step}", digest(host(loss))
    # Two functions that nothing else calls: some launches as they are, one recorded, replays.
    still = torch.rand(1024, device="cuda") * 7
    for _ in range(DIRECT):
        torch.atan(torch.frac(still))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moved = torch.atan(torch.frac(still))
    for _ in range(REPLAYS):
        graph.replay()
    yield "graph", digest(host(moved))
    yield "runs_of_frac_and_atan", DIRECT + REPLAYS


DIRECT, REPLAYS = 3, 50  # together a prime, which divides no launch's threads


def torch_short():
    """A few steps of the training, for tools that keep a record of each block."""
    yield from torch_training(steps=4)


def torch_gemms():
    import torch

    torch.manual_seed(5)
    for rows, columns, depth in (
        (1024, 1024, 1024),
        (64, 4096, 4096),
        (4096, 64, 8192),
        (96, 80, 64),
    ):
        a = torch.randn(rows, depth, device="cuda") / 8
        b = torch.randn(depth, columns, device="cuda") / 8
        bias = torch.randn(columns, device="cuda")
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            left, right = a.to(dtype), b.to(dtype)
            for _ in range(3):
                product = torch.nn.functional.linear(left, right.t().contiguous(), bias.to(dtype))
                result = product + left @ right
            yield f"{dtype}_{rows}_{columns}_{depth}", digest(host(result))
        torch.backends.cuda.matmul.allow_tf32 = True
        yield f"tf32_{rows}_{columns}_{depth}", digest(host(a @ b))
        torch.backends.cuda.matmul.allow_tf32 = False
        one = torch.ones((), device="cuda")
        left = a.to(torch.float8_e4m3fn)
        right = b.t().contiguous().to(torch.float8_e4m3fn).t()
        for _ in range(3):
            result = torch._scaled_mm(
                left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
            )
        yield f"fp8_{rows}_{columns}_{depth}", digest(host(result))


def torch_compiled():
    import torch
    from torch import nn

    torch.manual_seed(13)
    model = nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 64)
    ).cuda()
    compiled = torch.compile(model)
    x = torch.randn(128, 256, device="cuda")
    for step in range(5):
        model.zero_grad()
        loss = nn.functional.cross_entropy(compiled(x), torch.arange(128, device="cuda") % 64)
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(each.grad, alpha=0.01)
        yield f"loss_{step}", digest(host(loss))


def numba_kernels():
    import numpy

    # Versions of numba-cuda that are older than NumPy 2.5 still ask for its former name.
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
    from numba import cuda

    @cuda.jit
    def axpy(out, x, a):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = a * x[i] + out[i]

    x = numpy.arange(100_003, dtype=numpy.float32)
    out = cuda.to_device(numpy.ones_like(x))
    device = cuda.to_device(x)
    for _ in range(20):
        axpy[(x.size + 255) // 256, 256](out, device, numpy.float32(0.5))
    yield "axpy", digest(out.copy_to_host())


def triton_kernels():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

    @triton.jit
    def product(a, b, c, size: tl.constexpr):
        rows, columns = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
        left, right = tl.load(a + rows * size + columns), tl.load(b + rows * size + columns)
        tl.store(c + rows * size + columns, tl.dot(left, right))

    torch.manual_seed(3)
    x, y = torch.randn(100_003, device="cuda"), torch.randn(100_003, device="cuda")
    out = torch.empty_like(x)
    for _ in range(20):
        add[(triton.cdiv(100_003, 1024),)](x, y, out, 100_003, 1024)
    yield "add", digest(host(out))
    a = torch.randn(64, 64, device="cuda", dtype=torch.float16)
    c = torch.empty(64, 64, device="cuda")
    for _ in range(20):
        product[(1,)](a, a, c, 64)
    yield "dot", digest(host(c))


def cupy_arrays():
    import cupy

    x = cupy.arange(100_003, dtype=cupy.float32)
    for name, run in {
        "axpy": lambda: 2 * x + 1,
        "sum": lambda: x.sum(),
        "sort": lambda: cupy.sort(-x),
        "matmul": lambda: x[:65536].reshape(256, 256) @ x[:65536].reshape(256, 256),
    }.items():
        for _ in range(10):
            result = run()
        yield name, digest(cupy.asnumpy(result))


def jax_functions():
    # XLA times several ways to multiply and takes the fastest, another one in each process; and it
    # makes command buffers (graphs) of five kernels at least.
    os.environ["XLA_FLAGS"] = (
        "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"
        " --xla_gpu_graph_min_graph_size=1"
    )
    import jax
    import jax.numpy as jnp
    import numpy

    x = jnp.arange(100_000, dtype=jnp.float32).reshape(100, 1000)
    for name, run in {
        "fused": jax.jit(lambda v: jnp.tanh(v / 1e5) * 2 + 1),
        "softmax": jax.jit(lambda v: jax.nn.softmax(v / 1e5, axis=1)),
        "matmul": jax.jit(lambda v: v @ v.T),
        "loop": jax.jit(lambda v: jax.lax.fori_loop(0, 20, lambda _, w: w * 0.5 + 1, v)),
    }.items():
        for _ in range(10):
            result = run(x)
        yield name, digest(numpy.asarray(result))


WORK = {
    "torch": torch_operators,
    "train": torch_training,
    "short": torch_short,
    "all": torch_all,
    "stress": torch_stress,
    "gemms": torch_gemms,
    "compiled": torch_compiled,
    "triton": triton_kernels,
    "cupy": cupy_arrays,
    "jax": jax_functions,
    "numba": numba_kernels,
}


def main(name):
    try:
        results = dict(WORK[name]())
    except ImportError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return MISSING
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
