"""The asyncio client, against model servers in this process."""

import asyncio
import pathlib
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fake_server import SERVE, FaultError, upper_case_model

from keras_transformer import InputError
from keras_transformer.client import AsyncClient, Client, FailedRowsError, ServingError


@pytest.fixture
def model():
    return upper_case_model()


@pytest.fixture(params=list(SERVE))
def run(request, model):
    """Runs a coroutine function with a client of the model."""
    with SERVE[request.param](model) as address:

        def run(function, **options):
            async def main():
                settings = {"protocol": request.param, "timeout_s": 20} | options
                async with AsyncClient(address, **settings) as client:
                    return await asyncio.wait_for(function(client), 60)

            return asyncio.run(main())

        run.address, run.protocol = address, request.param
        yield run


def test_methods_return_what_the_blocking_ones_do(run):
    sentences = ["one two", "three", ""]

    async def call_all(client):
        return [
            await client.translate(sentences),
            await client.translate(sentences, max_length=3),
            await client.translate([]),
            await client.score(sentences, sentences),
            await client.align(sentences[:1], sentences[:1]),
            await client.status(),
        ]

    with Client(run.address, protocol=run.protocol) as client:
        expected = [
            client.translate(sentences),
            client.translate(sentences, max_length=3),
            client.translate([]),
            client.score(sentences, sentences),
            client.align(sentences[:1], sentences[:1]),
            client.status(),
        ]
    assert run(call_all) == expected


def test_waiting_calls_share_the_requests_in_flight(run, model):
    model.may_answer.clear()

    async def call_often(client):
        calls = [asyncio.create_task(client.translate([f"a{number}"])) for number in range(200)]
        while model.at_once < 3:
            await asyncio.sleep(0.01)  # the loop is free while requests wait
        threads = threading.active_count()
        model.may_answer.set()
        return await asyncio.gather(*calls), threads

    before = threading.active_count()
    answers, threads = run(call_often, requests_in_flight=3)
    assert [answer[0][0].text for answer in answers] == [f"A{number}" for number in range(200)]
    assert model.most_at_once == 3
    assert threads - before < 40  # not one for each call


def test_errors_are_those_of_the_blocking_client(run, model):
    with pytest.raises(InputError, match="max_length must be a whole number of 32 bits"):
        run(lambda client: client.translate(["a"], max_length="long"))
    with pytest.raises(ServingError, match="has no model 'other'"):
        run(lambda client: client.translate(["a"]), model="other")
    answer = model.versions[1]

    def predict(signature, inputs):
        if "bad" in inputs["text"]:
            raise FaultError("INVALID_ARGUMENT", "no")
        return answer(signature, inputs)

    model.versions[1] = predict
    with pytest.raises(FailedRowsError) as caught:
        run(lambda client: client.translate(["a", "bad", "c"]))
    assert list(caught.value.failures) == [1]
    assert [each and each[0].text for each in caught.value.results] == ["A", None, "C"]


async def cancel_in_flight(client, model, sentences):
    """Cancels a call during its first request, which then gets its answer."""
    call = asyncio.create_task(client.translate(sentences))
    while not model.requests:
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    model.may_answer.set()


def test_cancelled_call_sends_no_further_requests(run, model):
    model.may_answer.clear()

    async def cancel(client):
        await cancel_in_flight(client, model, list("abcdefgh"))
        return await client.translate(["z"])

    assert run(cancel, batch_size=1, requests_in_flight=1)[0][0].text == "Z"
    assert [request.inputs["text"] for request in model.requests] == [["a"], ["z"]]


def test_cancelled_call_halves_no_further_batches(run, model):
    answer, sizes = model.versions[1], []

    def predict(signature, inputs):
        sizes.append(len(inputs["text"]))
        if "bad" in inputs["text"]:
            raise FaultError("INVALID_ARGUMENT", "no")
        return answer(signature, inputs)

    model.versions[1] = predict
    model.may_answer.clear()

    async def cancel(client):
        await cancel_in_flight(client, model, ["bad", *"abcdefg"])
        await client.translate(["z"])

    run(cancel, requests_in_flight=1)
    assert sizes == [8, 1]


def test_closed_client_rejects_calls(run):
    async def close(client):
        await client.close()
        with pytest.raises(InputError, match="the client is closed; make another one"):
            await client.translate(["a"])
        with pytest.raises(InputError, match="the client is closed; make another one"):
            await client.status()

    run(close)


def test_close_ends_waiting_calls(run, model):
    model.may_answer.clear()

    async def close(client):
        call = asyncio.create_task(client.translate(list("abc")))
        while not model.requests:
            await asyncio.sleep(0.01)
        status = asyncio.create_task(client.status())
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.1)
        model.may_answer.set()
        await closing
        for each in (call, status):
            with pytest.raises(InputError, match="the client is closed"):
                await each

    run(close, batch_size=1, requests_in_flight=1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks tell from Python 3.11 on")
def test_cancellation_while_the_client_closes_is_one(run, model):
    model.may_answer.clear()

    async def close(client):
        call = asyncio.create_task(client.translate(["a"]))
        while not model.requests:
            await asyncio.sleep(0.01)
        call.cancel()
        client._is_closed.set()  # before the call learns that it was cancelled
        with pytest.raises(asyncio.CancelledError):
            await call
        model.may_answer.set()

    run(close)
