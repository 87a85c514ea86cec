"""The first training steps of a small transformer in PyTorch: seconds of each, the first loss.

One JSON object: {"import_s", "steps_s": [...], "loss": hash}.  77 without PyTorch.
"""

import hashlib
import json
import sys
import time

MISSING, STEPS = 77, 4


def main():
    begin = time.perf_counter()
    try:
        import torch  # noqa: PLC0415 - what this is about
        from torch import nn  # noqa: PLC0415
    except ImportError:
        return MISSING
    torch.cuda.init()
    torch.zeros(1, device="cuda").cpu()
    imported = time.perf_counter()
    torch.manual_seed(11)
    layers = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True), 4
    )
    model = nn.Sequential(nn.Embedding(1000, 256), layers, nn.LayerNorm(256), nn.Linear(256, 1000))
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    words = torch.randint(0, 1000, (16, 128), device="cuda")
    torch.cuda.synchronize()
    steps, first = [], None
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        first = loss.detach() if first is None else first
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        steps.append(time.perf_counter() - start)
    # Later ones depend on the order of additions in backward passes.
    value = hashlib.sha256(first.float().cpu().numpy().tobytes()).hexdigest()[:16]
    print(json.dumps({"import_s": imported - begin, "steps_s": steps, "loss": value}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
