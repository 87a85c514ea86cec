"""Eight PyTorch operators, each timed by itself: microseconds a call, as CUDA events have it.

    operators_workload.py [ROUNDS [NAME]...]

One JSON object: {"times": {operator: us}, "digests": {operator: hash}}.  77 without PyTorch.
"""

import hashlib
import json
import statistics
import sys

MISSING = 77
WARM, CALLS = 5, 20


def operators(torch):
    f = torch.nn.functional
    torch.manual_seed(1)
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    flat = torch.randn(64 << 20, device="cuda")
    other = torch.randn(64 << 20, device="cuda")
    rows = flat[: 8192 * 4096].view(8192, 4096)
    images = torch.randn(32, 64, 56, 56, device="cuda").half()
    weights = torch.randn(64, 64, 3, 3, device="cuda").half()
    heads = torch.randn(4, 16, 2048, 64, device="cuda", dtype=torch.bfloat16)
    return {
        "gemm_bf16_4096": lambda: square @ square,
        "add_64m": lambda: flat + other,
        "softmax_8192x4096": lambda: torch.softmax(rows, 1),
        "layer_norm_8192x4096": lambda: f.layer_norm(rows, (4096,)),
        "sum_64m": flat.sum,
        "gelu_64m": lambda: f.gelu(flat),
        "attention_bf16": lambda: f.scaled_dot_product_attention(heads, heads, heads),
        "conv2d_3x3_half": lambda: f.conv2d(images, weights, padding=1),
    }


def time_us(torch, run):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / CALLS


def main(rounds, names):
    try:
        import torch  # noqa: PLC0415 - what this is about
    except ImportError:
        return MISSING
    times, digests = {}, {}
    for name, run in operators(torch).items():
        if names and name not in names:
            continue
        for _ in range(WARM):
            result = run()
        digests[name] = hashlib.sha256(result.float().cpu().numpy().tobytes()).hexdigest()[:16]
        times[name] = statistics.median(time_us(torch, run) for _ in range(rounds))
    print(json.dumps({"times": times, "digests": digests}))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9, sys.argv[2:]))
