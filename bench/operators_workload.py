"""Eight PyTorch operators, timed when somebody asks: microseconds a call, as CUDA events have it.

    operators_workload.py COMMANDS ANSWERS

Two named pipes of JSON lines.  {"do": "digests"} gives {operator: hash of its result}; {"do":
"time", "operator", "warm", "calls", "times"} the median of so many times as many calls one after
the other; {"do": "end"} ends.  77 without PyTorch.
"""

import hashlib
import json
import statistics
import sys

MISSING = 77
LEAD_CYCLES = 3_000_000  # of the device's clock: meanwhile the host puts calls into the stream


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


def time_us(torch, run, calls):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(LEAD_CYCLES)
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / calls


def digest(run):
    return hashlib.sha256(run().float().cpu().numpy().tobytes()).hexdigest()[:16]


def answer(torch, known, command):
    if command["do"] == "digests":
        return {name: digest(run) for name, run in known.items()}
    run = known[command["operator"]]
    for _ in range(command["warm"]):
        run()
    torch.cuda.synchronize()
    times = [time_us(torch, run, command["calls"]) for _ in range(command["times"])]
    torch.cuda.synchronize()
    return statistics.median(times)


def main(commands, answers):
    try:
        import torch  # noqa: PLC0415 - what this is about
    except ImportError:
        return MISSING
    known = operators(torch)
    with open(commands) as asked, open(answers, "w") as said:
        print(json.dumps([*known]), file=said, flush=True)
        for line in iter(asked.readline, ""):
            command = json.loads(line)
            if command["do"] == "end":
                break
            print(json.dumps(answer(torch, known, command)), file=said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
