"""Times of steps, as each program logs them. Lines are after the programs' own formats."""

from __future__ import annotations

import pytest

from simreduce.errors import InputError
from simreduce.training.step_logs import read_steps

MEGATRON = (
    " [2026-01-01 00:00:0{0}] iteration        {0}/     100 | consumed samples:          128 |"
    " elapsed time per iteration (ms): {1} | learning rate: 1.0E-05 | global batch size:   128 |"
    " lm loss: 1.1E+01 |\n"
)


def _megatron(*milliseconds: float | str) -> str:
    return "".join(MEGATRON.format(i, each) for i, each in enumerate(milliseconds, 1))


def test_megatrons_lines_are_read_and_the_first_third_warms_up():
    found = read_steps(_megatron(32045.1, 7410.0, 7390.0, 7400.0), "a.log")

    assert ("Megatron-LM", 128) == (found.program, found.sequences)
    assert found.seconds == pytest.approx((32.0451, 7.41, 7.39, 7.4))
    assert found.step(1, 1) == pytest.approx(7.4)  # the median of the last three


def test_one_step_is_one_step():
    assert read_steps(_megatron(7400.0), "a.log").step(1, 1) == pytest.approx(7.4)


def test_torchtitans_rate_is_of_a_gpu():
    """5,762 tokens a second and GPU, 2 x 8192 tokens each on 8 of them: 2.843 s."""
    text = (
        "[rank0]: root - \x1b[31mstep: 10  \x1b[32mloss:  7.1  \x1b[34mmemory: 82.40GiB(86.78%)"
        "  \x1b[35mtps: 5,762  \x1b[36mtflops: 333.77  \x1b[35mmfu: 33.7%"
    )
    found = read_steps(text, "b.log")

    assert "torchtitan" == found.program
    assert found.step(2 * 8192 * 8, 8) == pytest.approx(2 * 8192 / 5762)


@pytest.mark.parametrize(
    ("line", "program", "seconds"),
    [
        ("iteration 9/99 | global_batch_size: 512 | train_step_timing in s: 4.21", "NeMo", 4.21),
        ("Epoch 0: : 10%|#   | 10/100 [00:42<06:18, train_step_timing in s=4.21]", "NeMo", 4.21),
        ("{'train_runtime': 421.9, 'train_steps_per_second': 0.237, 'epoch': 1.0}",
         "Hugging Face's Trainer", 1 / 0.237),
        (" 10%|#         | 10/100 [00:42<06:18,  4.21s/it]", "Lightning or tqdm", 4.21),
        ("Epoch 0:  10%|#  | 10/100 [00:05<00:45,  2.00it/s, v_num=1]",
         "Lightning or tqdm", 0.5),
        ("Epoch 0/9 ---- 12/100 0:00:42 - 0:06:18 2.00it/s v_num: 0", "Lightning or tqdm", 0.5),
    ],
)  # fmt: skip
def test_other_programs_are_read(line, program, seconds):
    found = read_steps(line + "\n", "c.log")

    assert (found.program, found.step(1, 1)) == (program, pytest.approx(seconds))


def test_a_csv_by_hand_says_its_tokens():
    found = read_steps("seconds,tokens\n4.2,1048576\n4.3,1048576\n", "d.csv")

    assert (found.tokens, found.seconds) == (1048576, (4.2, 4.3))


def test_a_time_that_is_no_number_of_seconds_is_left_out():
    found = read_steps(_megatron("1e999", 0.0, 7400.0), "a.log")

    assert found.seconds == pytest.approx((7.4,))


@pytest.mark.parametrize(
    ("text", "words"),
    [("hello\n", "no line has the time of a step"), ("", "no line has"),
     ("seconds,tokens\nx,12\n1,-3\n", "seconds: must be a number above 0.*\n.*tokens: must be"),
     ("seconds,tokens\n1,2\n1,3\n", "2 numbers of tokens"),
     ("seconds,tokens\n", "has no step$")],
)  # fmt: skip
def test_what_is_no_log_says_what_is(text, words):
    with pytest.raises(InputError, match=words):
        read_steps(text, "e.log")


LOADS = "Loading checkpoint shards:  50%|##  | {0}/4 [00:0{0}<00:05,  2.61s/it]\r"


def test_bars_of_what_is_no_training_are_left_out():
    """Transformers draws a bar for the shards that it loads, and one of evaluation, as training's
    without a name; what takes longest trains.
    """
    text = "".join(LOADS.format(i) for i in range(1, 5)) + "\n"
    text += "Map: 100%|####| 900/900 [09:00<00:00, 1.60s/it]\n"
    text += "  1%|    | 1/90 [00:09<09:00,  9.00s/it]\r  2%|    | 2/90 [00:13<06:00,  4.20s/it]\r"
    text += "100%|####| 8/8 [00:04<00:00,  2.00it/s]\r"
    text += "  3%|    | 3/90 [00:22<06:00,  4.30s/it]\r  4%|    | 4/90 [00:26<05:50,  4.10s/it]\r"

    assert read_steps(text, "f.log").seconds == pytest.approx((9.0, 4.2, 4.3, 4.1))


def test_a_rate_that_crosses_one_a_second_is_one_bar():
    text = (
        "Epoch 0: 10%|# | 1/9 [00:01<00:09, 1.25s/it]\nEpoch 1: 20%|# | 2/9 [00:02<0:07, 1.25it/s]"
    )

    assert read_steps(text, "f.log").seconds == pytest.approx((1.25, 0.8))


def test_a_log_of_other_bars_alone_says_what_they_are():
    with pytest.raises(InputError, match=r"its bars are of .Loading checkpoint shards.$"):
        read_steps(LOADS.format(1), "g.log")


def test_bars_below_one_another_move_the_cursor():
    """tqdm goes up a line, which was taken for the bar's name, and the bar for none of training."""
    text = "Map: 100%|##| 9/9 [00:09<00:00, 1.00s/it]\n\x1b[A 10%|# | 1/9 [00:01<00:09, 1.25s/it]"

    assert read_steps(text, "f.log").seconds == pytest.approx((1.25,))
