from __future__ import annotations

import pytest

from engine.messages import AbortReq
from tests.engine.scheduler.grammars import ScriptBackend, spec
from tests.engine.scheduler.harness import Harness, alone

CALL = '{ " n a m e " : abc abc abc , x y z ab } !'


SAMPLING = ("max_tokens", "logprobs", "temperature", "seed", "frequency_penalty", "logit_bias")


def run(source: str, **options):
    sampling = {key: options.pop(key) for key in SAMPLING if key in options}
    harness = Harness(grammar=ScriptBackend(), **options)
    harness.add("a", range(20), grammar=spec(source), **({"max_tokens": 100} | sampling))
    return harness, harness.run()["a"]


def text(result) -> str:
    return bytes(result.token_ids).decode()


def matches(source: str, written: str) -> bool:
    steps = source.split(" ")
    return len(written) == len(steps) and all(step == "." or char in step for step, char in zip(steps, written))


def test_output_follows_the_grammar_and_stops_when_it_is_complete():
    _, result = run(CALL)
    assert matches(CALL, text(result))
    assert (result.finish.type, result.finish.matched) == ("stop", None)
    assert result.completion_tokens == len(CALL.split(" "))


def test_forced_tokens_cost_no_step_of_their_own():
    harness, result = run(CALL)
    assert harness.scheduler.num_steps == 4, "three choices, then one more"
    slow, same = run(CALL, logprobs=True)
    assert slow.scheduler.num_steps == len(CALL.split(" ")), "logprobs need every token's logits"
    assert same.token_ids == result.token_ids
    assert len(same.logprobs) == len(same.token_ids)


def test_stats_tell_what_is_under_a_grammar_now_and_what_was_forced():
    harness = Harness(grammar=ScriptBackend())
    harness.add("a", range(20), grammar=spec(CALL), max_tokens=100)
    harness.add("b", range(20), grammar=spec(CALL), max_tokens=100)
    harness.add("c", range(20), max_tokens=100)
    harness.step()
    assert harness.scheduler.stats().grammar_rows == 2
    harness.run()
    stats = harness.scheduler.stats()
    assert stats.grammar_rows == 0
    assert stats.forced_tokens == 2 * (len(CALL.split(" ")) - 4), "all but the tokens that were sampled"
    assert stats.generated_tokens == 2 * len(CALL.split(" ")) + 100


@pytest.mark.parametrize("chunk", [1, 3, 512])
@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_output_whatever_the_chunks_and_drafts(chunk, drafts, temperature):
    want = run(CALL, temperature=temperature, seed=4)[1].token_ids
    got = run(CALL, temperature=temperature, seed=4, chunked_prefill_size=chunk, num_draft_tokens=drafts)[1].token_ids
    assert got == want


def test_preempted_within_forced_tokens():
    want = run(CALL)[1].token_ids
    for moment in range(1, 5):
        harness = Harness(grammar=ScriptBackend())
        harness.add("a", range(20), grammar=spec(CALL), max_tokens=100)
        for _ in range(moment):
            harness.step()
        for req in list(harness.scheduler.running):
            harness.scheduler._preempt(req)
        assert harness.run()["a"].token_ids == want


@pytest.mark.parametrize("max_tokens", range(1, 17))
def test_max_tokens_cuts_anywhere(max_tokens):
    want = run(CALL)[1].token_ids
    _, result = run(CALL, max_tokens=max_tokens)
    assert result.token_ids == want[:max_tokens]
    assert result.finish.type == ("stop" if max_tokens == len(want) else "length")


@pytest.mark.parametrize("source", ["ab", "a", "ab ab", "ab a", "ab ab ab ab ab ab", "ab ab ab ab ab a a"])
@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("logprobs", [False, True])
def test_an_answer_that_is_complete_with_its_last_token_is_no_cut_one(source, drafts, logprobs):
    """Chosen, guessed or forced: the last token that max_tokens allows is the grammar's end."""
    length = len(source.split())
    _, result = run(source, num_draft_tokens=drafts, max_tokens=length, logprobs=logprobs)
    assert (len(result.token_ids), result.finish.type) == (length, "stop")


def test_penalties_count_forced_tokens():
    penalised = {"frequency_penalty": 2.0, "logit_bias": {97: 21.0, 98: 20.0, 99: 20.0}, "temperature": 0.0}
    source = "a a a a a a a a a a abc"
    assert text(run(source, **penalised)[1])[-1] != "a"
    assert text(run(source, **(penalised | {"frequency_penalty": 0.0, "logit_bias": {97: 60.0}}))[1])[-1] == "a"
    assert run(source, **penalised)[1].token_ids == run(source, logprobs=True, **penalised)[1].token_ids


def test_long_forced_runs():
    source = " ".join("x" * 300)
    harness, result = run(source, max_tokens=500)
    assert text(result) == "x" * 300
    assert harness.scheduler.num_steps < 20


def test_grammar_that_cannot_compile_is_a_400_with_its_message():
    _, result = run("bad")
    assert (result.finish.type, result.finish.status) == ("error", 400)
    assert result.finish.message == "The pattern cannot be compiled."


def test_grammar_without_a_backend_is_a_400():
    harness = Harness()
    harness.add("a", range(20), grammar=spec(CALL))
    assert harness.run()["a"].finish.status == 400


def test_free_and_bound_rows_share_steps():
    harness = Harness(grammar=ScriptBackend(), num_draft_tokens=3)
    for index in range(12):
        harness.add(f"g{index}", range(20 + index), grammar=spec(CALL), max_tokens=100)
        harness.add(f"f{index}", range(20 + index))
    results = harness.run()
    for index in range(12):
        single = Harness(grammar=ScriptBackend())
        single.add("g", range(20 + index), grammar=spec(CALL), max_tokens=100)
        single.add("f", range(20 + index))
        single.run()
        assert results[f"g{index}"].token_ids == single.results["g"].token_ids
        assert results[f"f{index}"].token_ids == single.results["f"].token_ids


def test_new_grammars_are_compiled_a_few_in_each_step_while_others_run(monkeypatch):
    """Each may take half a second, which everybody who runs would wait for. Others are not put off, and neither are
    grammars that are compiled already."""
    compiled: list[str] = []
    backend = ScriptBackend()
    monkeypatch.setattr(backend, "is_compiled", lambda spec: spec.source in compiled)
    compile_one = backend.compile
    monkeypatch.setattr(backend, "compile", lambda spec: compiled.append(spec.source) or compile_one(spec))
    harness = Harness(grammar=backend)
    for index in range(5):
        harness.add(f"alone {index}", range(20), grammar=spec(f"ab cd {index}x"), max_tokens=40)
    harness.step()
    assert len(compiled) == 5, "nobody waits"
    for index in range(5):
        harness.add(f"new {index}", range(20), grammar=spec(f"ab cd ef {index}x"))
    harness.add("known", range(20), grammar=spec("ab cd 0x"))
    harness.add("free", range(20), max_tokens=4)
    harness.add("runs", range(30), max_tokens=40)
    harness.scheduler.add(AbortReq(rid="new 4"))
    harness.scheduler.add(AbortReq(rid="runs"))
    harness.step()
    assert compiled.count("ab cd 0x") == 2
    assert len(set(compiled)) == 7
    assert harness.results["runs"].finish.type == "abort"
    results = harness.run()
    assert results["new 4"].finish.type == "abort"
    assert all(results[f"new {index}"].finish.type == "stop" for index in range(4))
    assert results["free"].token_ids == alone(range(20), max_tokens=4)
