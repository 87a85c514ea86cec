"""What people see of a refusal and of warnings: golden texts of ``egpu verify`` on real objects."""

from pathlib import Path

import oracle_programs
import pytest

from egpu.cli import main

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    bool(oracle_programs.compiler_missing()), reason=oracle_programs.compiler_missing() or "found"
)

SOURCE = """
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u8[16]);
} bytes SEC(".maps");

SEC("kprobe/*")
int pick(struct egpu_ctx *ctx)
{
	__u32 key = 0;
	__u8 *v = bpf_map_lookup_elem(&bytes, &key);

	if (!v)
		return 0;
	return v[ctx->lane];
}

SEC("kprobe/*")
int forgets(struct egpu_ctx *ctx)
{
	__u32 key = ctx->sm;
	__u8 *v = bpf_map_lookup_elem(&bytes, &key);

	return v[0];
}

static long reach(void *map, __u32 *key, __u8 *value, struct egpu_ctx **ctx)
{
	return value[*key & 31];
}

SEC("kprobe/*")
int walks(struct egpu_ctx *ctx)
{
	bpf_for_each_map_elem(&bytes, reach, 0, 0);
	return 0;
}

__u64 seen, total;

static long add(__u32 turn, void *unused)
{
	__sync_fetch_and_add(&total, turn);
	return 0;
}

SEC("kprobe/*")
int queues(struct egpu_ctx *ctx)
{
	bpf_loop(6, add, 0, 0);
	return 0;
}

SEC("kprobe/*")
int counts(struct egpu_ctx *ctx)
{
	__sync_fetch_and_add(&seen, 1);
	return 0;
}
"""
GOLDEN = HERE / "messages.txt"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """What ``egpu verify --path`` prints, without the folder of the source."""
    folder = tmp_path_factory.mktemp("messages")
    source = folder / "probe.bpf.c"
    source.write_text(SOURCE)
    target = folder / "probe.bpf.o"
    oracle_programs.compile_object(source, "v3", target)
    return folder, target


def run(capsys, *arguments):
    code = main(["verify", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_golden(text, capsys):
    folder, target = text
    code, output = run(capsys, "--path", target)
    assert code == 1
    assert output.replace(f"{folder}/", "") == GOLDEN.read_text()


def test_path_only_on_request(text, capsys):
    _, output = run(capsys, text[1])
    assert " ; r1=ctx" not in output
    assert len(output.splitlines()) == 10


def test_the_budget_of_one_address(text, capsys):
    _, output = run(capsys, text[1])
    assert "up to 6 atomics of a thread go to one address of map .bss" in output
    assert "--atomic-budget" in output
    _, output = run(capsys, "--atomic-budget", "6", text[1])
    assert "one address of" not in output
