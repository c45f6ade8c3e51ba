"""What is repeated and what is not, and what is sent with a call: against a server that fails as it is told."""

import asyncio
from concurrent import futures

import pytest

MODEL = "any"


class Script:
    """A server of generic handlers: `fail[method]` is how many calls of a method fail with UNAVAILABLE, `after` how
    many messages of a stream are sent before it does."""

    def __init__(self, grpc, gh):
        self.grpc = grpc
        self.calls = []  # (method, metadata, seconds left)
        self.fail = {}
        self.after = 0
        self.cut = 0  # so many streams end as a proxy ends those of a server that died
        self.answers = {}
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers([self])
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.address = f"127.0.0.1:{port}"

    def service(self, details):
        method = details.method.rsplit("/", 1)[1]

        def stream(request, context):
            self.calls.append((method, dict(details.invocation_metadata), context.time_remaining()))
            failing = self.fail.get(method, 0) > 0
            if failing:
                self.fail[method] -= 1
            cut = method in ("Generate", "WatchOperation") and self.cut > 0
            self.cut -= cut
            for i, answer in enumerate(self.answers.get(method, [])):
                if failing and i == self.after or cut and i == 1:
                    break
                yield answer.SerializeToString()
            if failing:
                context.abort(self.grpc.StatusCode.UNAVAILABLE, "on purpose")
            if cut:
                context.abort(self.grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2")

        def unary(request, context):
            return b"".join(stream(request, context))

        # Bytes in, bytes out.
        if method in ("Generate", "Score", "WatchOperation", "FetchResult", "GetReport"):
            return self.grpc.unary_stream_rpc_method_handler(stream)
        if method == "UploadCorpus":
            return self.grpc.stream_unary_rpc_method_handler(lambda requests, context: unary(list(requests), context))
        return self.grpc.unary_unary_rpc_method_handler(unary)

    def times(self, method):
        return sum(call[0] == method for call in self.calls)


@pytest.fixture
def script(gh):
    import grpc
    from gatehouse.v1 import generation_pb2, operations_pb2
    made = Script(grpc, gh)
    token = generation_pb2.GenerateResponse(token=generation_pb2.GeneratedToken(id=1, text="a", raw=b"a"))
    summary = generation_pb2.GenerateResponse(summary=generation_pb2.GenerationSummary(finish_reason=1))
    made.answers["Generate"] = [token, token, summary]
    running = operations_pb2.Operation(name="operations/there/1", state=2)
    ended = operations_pb2.Operation(name="operations/there/1", state=3)
    made.answers["WatchOperation"] = [operations_pb2.WatchOperationResponse(operation=op) for op in (running, ended)]
    for method in ("Get", "Cancel", "Start"):
        kind = getattr(operations_pb2, f"{method}OperationResponse")
        made.answers[f"{method}Operation"] = [kind(operation=running)]
    made.answers["FetchResult"] = [operations_pb2.FetchResultResponse(data=b"x")]
    yield made
    made.server.stop(None).wait()


def test_a_call_that_no_server_began_to_answer_is_repeated(gh, script):
    script.fail["Generate"] = 2
    with gh.connect(script.address) as client:
        assert client.generate(MODEL, "x").result().text == "aa"
    assert script.times("Generate") == 3


def test_a_call_is_given_up_after_its_attempts(gh, script):
    script.fail["Generate"] = 9
    with gh.connect(script.address, attempts=2) as client:
        with pytest.raises(gh.errors.UnavailableError, match="on purpose"):
            client.generate(MODEL, "x").result()
    assert script.times("Generate") == 2


def test_a_stream_that_began_is_never_repeated(gh, script):
    script.fail["Generate"], script.after = 1, 1
    with gh.connect(script.address) as client:
        stream = client.generate(MODEL, "x")
        assert next(stream).text == "a"
        with pytest.raises(gh.errors.UnavailableError):
            list(stream)
        with pytest.raises(gh.errors.UnavailableError):
            stream.result()  # half an answer is none
    assert script.times("Generate") == 1


def test_an_operation_is_never_started_twice(gh, script):
    script.fail["StartOperation"] = 1
    with gh.connect(script.address) as client, pytest.raises(gh.errors.UnavailableError):
        client.calibrate(MODEL, "corpora/x")
    assert script.times("StartOperation") == 1


def test_a_watch_goes_on_where_the_connection_breaks(gh, script):
    script.fail["WatchOperation"], script.after = 2, 1

    async def wait():
        async with gh.AsyncClient(script.address) as client:
            return (await (await client.operation("operations/there/1")).wait()).state

    with gh.connect(script.address) as client:
        states = []
        assert client.operation("operations/there/1").wait(states.append).state == "succeeded"
    assert [state.state for state in states] == ["running", "running", "running", "succeeded"]
    script.fail["WatchOperation"] = 2
    assert asyncio.run(wait()) == "succeeded"
    assert script.times("WatchOperation") == 6


def test_calls_that_name_an_operation_name_its_replica(gh, script):
    with gh.connect(script.address) as client:
        operation = client.operation("operations/there/1")
        operation.refresh()
        operation.cancel()
        operation.wait()
        operation.fetch()
        client.generate(MODEL, "x").result()
        with pytest.raises(ValueError, match="must be operations/REPLICA/ID"):
            client.operation("operations/there")
    named = {method: metadata.get("gatehouse-replica") for method, metadata, _ in script.calls}
    assert named == {"GetOperation": "there", "CancelOperation": "there", "WatchOperation": "there",
                     "FetchResult": "there", "Generate": None}


def test_operations_start_where_their_texts_are(gh, script, tmp_path):
    from gatehouse.v1 import operations_pb2
    uploaded = operations_pb2.UploadCorpusResponse(corpus="corpora/x", size_bytes=1, replica="here")
    script.answers["UploadCorpus"] = [uploaded]
    text = tmp_path / "text"
    text.write_text("x")
    with gh.connect(script.address) as client:
        client.experiment(MODEL, [text, text], gh.experiments.NoFly())
        client.calibrate(MODEL, gh.Corpus("corpora/x", 1, "elsewhere"))
        client.calibrate(MODEL, "corpora/x")
        client.experiment(MODEL, "corpora/x", gh.experiments.Training(), resume="operations/there/1")
    with gh.connect(script.address, replica="chosen") as client:
        client.calibrate(MODEL, "corpora/x")
        client.generate(MODEL, "x").result()

    async def start():
        async with gh.AsyncClient(script.address) as client:
            await client.experiment(MODEL, [text, text], gh.experiments.NoFly())

    asyncio.run(start())
    named = [(method, metadata.get("gatehouse-replica")) for method, metadata, _ in script.calls]
    from_files = [("UploadCorpus", None), ("UploadCorpus", "here"), ("StartOperation", "here")]
    started = [("StartOperation", replica) for replica in ("elsewhere", None, "there", "chosen")]
    assert named == [*from_files, *started, ("Generate", "chosen"), *from_files]


def test_an_answer_of_another_replica_means_that_the_operations_own_is_away(gh, script):
    error = gh.errors.FailedPreconditionError
    assert gh.operations.absent(error("x", reason="OTHER_REPLICA")) and not gh.operations.absent(error("x"))


def test_calls_have_deadlines_unless_told_otherwise(gh, script):
    with gh.connect(script.address) as client:
        operation = client.operation("operations/there/1")
        client.generate(MODEL, "x").result()
        client.generate(MODEL, "x", timeout=5).result()
        client.generate(MODEL, "x", timeout=None).result()
        operation.wait()
    left = [seconds for _, _, seconds in script.calls]
    assert left[:3] == [pytest.approx(60, abs=10), pytest.approx(3600, abs=10), pytest.approx(5, abs=2)]
    assert all(seconds is None or seconds > 1e9 for seconds in left[3:])


def test_an_answer_without_a_summary_is_an_error(gh, script):
    script.answers["Generate"].pop()
    with gh.connect(script.address) as client, pytest.raises(gh.errors.InternalError, match="without a summary"):
        client.generate(MODEL, "x").result()


def test_what_a_proxy_puts_into_the_error_details_does_no_harm(gh):
    class Failed:
        def code(self):
            from grpc import StatusCode
            return StatusCode.INVALID_ARGUMENT

        def details(self):
            return "temperature is odd, must be in [0, 1)"

        def trailing_metadata(self):
            return (("grpc-status-details-bin", b"\xff\xff"),)

    from gatehouse.v1 import generation_pb2
    error = gh.errors.from_rpc(Failed(), generation_pb2.GenerateRequest())
    assert (error.reason, error.field, error.bounds) == ("", "sampling.temperature", (0, 1))
    assert gh.errors.from_rpc(Failed(), None).field is None


def test_a_stream_that_a_proxy_cuts_means_that_its_server_is_away(gh, script):
    script.cut = 1
    with gh.connect(script.address) as client:
        with pytest.raises(gh.errors.UnavailableError, match="went away within its answer"):
            client.generate(MODEL, "x").result()
        script.cut = 1
        assert client.operation("operations/there/1").wait().state == "succeeded"
    assert script.times("WatchOperation") == 2
