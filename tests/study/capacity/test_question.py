"""Capacity files: what they mean, and every fault at once."""

from __future__ import annotations

import pytest

from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.study.capacity import load_question
from simreduce.study.capacity.answer import cell_of
from simreduce.study.capacity.flips import Rate
from simreduce.study.capacity.price_list import (
    ENERGY_PRICE,
    POWER,
    PRICE,
    Money,
    Pieces,
    join,
    load_prices,
    parse_prices,
    shipped,
)
from simreduce.study.sweep.evaluate import evaluate
from simreduce.topology import shipped as topologies
from simreduce.training.step import LEFT, RESERVED

HEAD = 'workload = "alexnet"\n'
PRICES = '[prices.machines.dgx1v]\nprice = "8760 USD"\nlifetime = "1 years"\n'
STEP = '[step]\nbatch = 32\nrate = "5 TFLOP/s"\n'
OPTIONS = '[[options]]\nmachine = "dgx1v"\nnodes = [1, 2]\n'


@pytest.fixture
def asked(tmp_path):
    """The question in a file with this text."""

    def _asked(text: str):
        path = tmp_path / "mine.toml"
        path.write_text(text, "utf-8")
        return load_question(str(path))

    return _asked


def test_options_are_the_product_of_their_lists(asked):
    """One machine has no network; faster links and other rates are theirs."""
    question = asked(
        HEAD + PRICES + STEP
        + '[[options]]\nmachine = "dgx1v"\nnodes = [1, 2]\nnetwork = ["switch", "rail_only"]\n'
        'method = ["ddp", "fsdp"]\nstrategy = "nccl"\nstep.rate = "6 TFLOP/s"\n'
    )  # fmt: skip

    assert [
        ("dgx1v", "ddp"),
        ("dgx1v", "fsdp"),
        ("dgx1vx2,fabric=switch", "ddp"),
        ("dgx1vx2,fabric=switch", "fsdp"),
        ("dgx1vx2,fabric=rail_only", "ddp"),
        ("dgx1vx2,fabric=rail_only", "fsdp"),
    ] == [(o.scenario["topology"], o.scenario["step"]["method"]) for o in question.options]
    assert {"6 TFLOP/s"} == {o.scenario["step"]["rate"] for o in question.options}
    assert "hourly" == question.target.minimise


def test_a_global_batch_is_shared_out(asked):
    """A number of GPUs that does not divide it is no option, and the reason is said."""
    question = asked(
        HEAD + "global_batch = 48\n" + PRICES
        + '[step]\nrate = "5 TFLOP/s"\n[[options]]\nmachine = "dgx1v"\nnodes = [1, 2, 4]\n'
    )  # fmt: skip

    assert [6, 3, 1] == [o.scenario["step"]["batch"] for o in question.options]
    assert ["", "", "48 samples do not come out even on 32 GPUs"] == [
        o.refused for o in question.options
    ]


@pytest.mark.slow
def test_a_measured_time_is_of_its_batch(asked):
    """What each GPU gets of a global batch takes its part of the time, and of the activations."""

    def answered(activations):
        question = asked(
            HEAD + "global_batch = 1024\n" + PRICES + '[step]\nbatch = 32\ntime = "40 ms"\n'
            f'activations = "{activations} GB"\n[[options]]\nmachine = "dgx1v"\nnodes = [1, 2, 4]\n'
        )  # fmt: skip
        return question, [evaluate(cell_of(each, question.folder)) for each in question.options]

    (question, rows), (_, others) = answered(1), answered(0.5)

    assert [0.160, 0.080, 0.040] == [pytest.approx(row.compute) for row in rows]
    assert [128, 64, 32] == [
        round(row.samples_per_second * row.seconds / row.ranks) for row in rows
    ]
    taken = (1.0 + RESERVED) / (1.0 - LEFT)
    assert [row.memory - other.memory for row, other in zip(rows, others, strict=True)] == [
        pytest.approx(each * 500_000_000 * taken, abs=1) for each in (4, 2, 1)
    ]
    twice = Rate("", ()).changed(question.options[2], 2.0)
    assert evaluate(cell_of(twice, question.folder)).compute == pytest.approx(0.020)


def test_a_method_that_cannot_fit_is_no_option(asked):
    """Llama 3 70B needs 16 bytes a parameter and GPU, or a share of them."""
    question = asked(
        'workload = "llama-3-70b"\n[prices.machines.dgx-h100]\nprice = "1 USD/h"\n' + STEP
        + '[[options]]\nmachine = "dgx-h100"\nnodes = 4\nmethod = ["ddp", "fsdp"]\n'
        'step.activations = "1 GB"\n'
    )  # fmt: skip
    whole, shared = question.options

    assert "needs" in whole.refused
    assert "85.02 GB" in whole.refused
    assert "" == shared.refused


def test_activations_that_cannot_fit_are_no_option(asked):
    """Estimated by the batch of each option; recomputation of whole blocks makes room."""
    text = (
        'workload = "llama-3-8b"\n[prices.machines.dgx-h100]\nprice = "1 USD/h"\n[step]\n'
        'rate = "400 TFLOP/s"\nkernels = "megatron"\nrecompute = "{}"\n'
        'sharding.param_dtype = "bfloat16"\n'
        '[[options]]\nmachine = "dgx-h100"\nmethod = "fsdp"\nbatch = [1, 2]\n'
    )
    one, two = asked(text.format("none")).options
    again = asked(text.format("full")).options

    assert "" == one.refused
    assert two.refused.endswith(
        "a GPU has 85.02 GB, 55% too much; 96.72 GB of activations (estimated)"
    )
    assert ["", ""] == [option.refused for option in again]


def test_what_is_bought_is_paid_off_and_draws_power(asked):
    """Per hour in use: 8760 USD in a year used half, 2 kW at 1.5 times the power, cables, ports."""
    prices = asked(
        HEAD + STEP + OPTIONS
        + '[prices]\nenergy = "0.1 USD/kWh"\noverhead = 1.5\nutilisation = 0.5\n'
        '[prices.machines.dgx1v]\nprice = "8760 USD"\nlifetime = "1 years"\npower = "1 kW"\n'
        '[prices.networks.ib_edr]\nport = "8760 USD"\ncable = "2 USD/h"\nlifetime = "2 years"\n'
    ).prices  # fmt: skip
    pays = prices.quantities(Pieces("dgx1v", 2, "ib_edr", ports=10, cables=8))

    assert prices.per_hour(pays) == pytest.approx(2 * 2.0 + 3.0 * 0.1 + 10 * 1.0 + 8 * 2.0)


@pytest.mark.parametrize("name", shipped())
def test_shipped_price_lists_say_where_and_when(name):
    """Prices age."""
    prices = load_prices(name)

    assert prices.title
    assert prices.date
    assert prices.sources
    known = [machine for machine, _ in topologies()]
    assert not set(prices.machines) - set(known)
    for item in prices.items.values():
        assert item.name == "energy" or (item.source and item.date)


def test_lists_join_and_the_first_price_counts(asked):
    """Energy and networks of one, machines of the other; other currencies are refused."""
    both = asked(
        HEAD + 'prices = ["aws-capacity-blocks", "h100-cluster-2024"]\n' + STEP
        + '[[options]]\nmachine = ["p5", "dgx-h100"]\nnodes = 2\n'
    ).prices  # fmt: skip

    assert {"p4d", "p5", "p5e", "p5en", "dgx-h100"} == set(both.machines)
    assert "energy" in both.items
    assert both.watts(Pieces("dgx-h100", 1)) == pytest.approx(1.58 * 10.2e3)
    assert 0.0 == both.watts(Pieces("p5", 1))
    assert (True, False) == (both.machines["dgx-h100"].bought, both.machines["p5"].bought)
    first = parse_prices({"machines": {"a": {"price": "1 USD/h"}}}, Faults(), "")
    other = parse_prices({"machines": {"a": {"price": "3 USD/h"}}, "title": "b"}, Faults(), "")
    joined = join([first, other])
    assert 1.0 == joined.per_hour(joined.quantities(Pieces("a", 1)))
    assert ("of machines.a.price, 1 USD/h counts, not 3 USD/h of 'b'",) == joined.notes
    euros = parse_prices({"machines": {"b": {"price": "3 EUR/h"}}, "title": "b"}, Faults(), "")
    with pytest.raises(InputError, match="'b' is in EUR, the list of the file in USD; convert one"):
        join([first, euros])


def test_a_model_says_how_many_tokens_a_sample_has(asked):
    """Of a sequence, as in its name; otherwise `tokens_per_sample` says."""
    rest = PRICES + STEP + OPTIONS + "[target]\ntokens = 1e9\ntokens_per_second = 1e3\n"

    for head, tokens in (
        ('workload = "bert-large,sequence=512"\n', 512),
        ('workload = "gpt2"\n', 1024),
        ('workload = "gpt2"\ntokens_per_sample = 2000\n', 2000),
        (HEAD + "tokens_per_sample = 196\n", 196),
    ):
        target = asked(head + rest).target
        assert tokens == target.tokens
        assert target.samples == pytest.approx(1e9 / tokens)
        assert target.token_rate == pytest.approx(1e3 / tokens)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["workload: missing; must be text",
              "prices: missing; must be the name or the file of a price list, or a table with one",
              "options: missing; must be [[options]] tables with "]),
        (PRICES + STEP + OPTIONS, ["workload: missing; must be text"]),
        (HEAD + PRICES + STEP + OPTIONS + "nods = 3\n",
         ["options[0].nods: unknown key (did you mean 'nodes'?)"]),
        (HEAD + PRICES + STEP + OPTIONS.replace("dgx1v", "dgx2"),
         ["prices: has no price of 'dgx2' (did you mean 'dgx1v'?)"]),
        (HEAD + 'prices = "aws-capacity-block"\n' + STEP + OPTIONS,
         ["prices: no price list 'aws-capacity-block' (did you mean 'aws-capacity-blocks'?)"]),
        (HEAD + PRICES + STEP + OPTIONS + OPTIONS,
         ["options[1]: 1 x dgx1v, ddp, nccl, batch 32 has what options[0] has;"]),
        (HEAD + PRICES + STEP + OPTIONS + 'strategy = "ncll"\nmethod = "fsd"\n',
         ["options[0].strategy[0]: strategy (ncll) contains invalid alg ncll",
          "options[0].method: must be one of "]),
        (HEAD + "global_batch = 64\n" + PRICES + '[step]\ntime = "1 ms"\n' + OPTIONS,
         ["options[0].step.batch: missing; say of how many samples step.time is"]),
        (HEAD + PRICES.replace("dgx1v", '"switch:4"') + STEP + OPTIONS.replace("dgx1v", "switch:4"),
         ["options[0].machine: switch:4: is not one machine"]),
        (HEAD + PRICES + STEP + 'method = "fsdp"\n' + OPTIONS,
         ["step.method: write it in options, as method"]),
        (HEAD + PRICES + STEP + 'strategy = "ring"\n' + OPTIONS,
         ["step.strategy: write it in options, as strategy"]),
        (HEAD + PRICES + STEP + OPTIONS + "[target]\nefficiency = 90\n",
         ["target.efficiency: must be a number from 0 to 1, got 90"]),
        (HEAD + PRICES + '[step]\nbatch = 0\nrate = "5 GB"\n' + OPTIONS,
         ["options[0].step.batch: must be a whole number", "options[0].step.rate: "]),
        (HEAD + PRICES + STEP + OPTIONS + '[target]\nbudget = "5 EUR"\nefficency = 2\n',
         ["target.efficency: unknown key (did you mean 'efficiency'?)",
          "target: budget is that of a run; give samples or tokens",
          "target.budget: is in EUR, prices are in USD; convert it"]),
        (HEAD + PRICES + STEP + OPTIONS + "[target]\ntokens = 1e9\n",
         ["target.tokens: nobody says how many tokens a sample of alexnet has; give tokens_per"]),
        ('workload = "gpt2"\n' + PRICES + STEP + OPTIONS
         + '[target]\ntokens = 1e9\nsamples = 5\ncost_per_million_tokens = "1 EUR"\n',
         ["target: give one of samples, tokens; it has both",
          "target.cost_per_million_tokens: is in EUR, prices are in USD; convert it"]),
        (HEAD + 'prices = ["aws-on-demand", "aws-on-demnd", "aws-on-demand"]\n' + STEP + OPTIONS,
         ["prices[2]: aws-on-demand stands there twice"]),
        (HEAD + 'prices = ["aws-on-demand", "aws-on-demnd"]\n' + STEP + OPTIONS,
         ["prices[1]: no price list 'aws-on-demnd' (did you mean 'aws-on-demand'?)"]),
        (HEAD + PRICES.replace("8760 USD", "8760 dollars") + STEP + OPTIONS,
         ["prices.machines.dgx1v.price: must be a price such as "]),
        (HEAD + PRICES + STEP + OPTIONS + '[prices]\nenergy = "1 EUR/kWh"\n', ["mine.toml"]),
        (HEAD + PRICES + 'energy = "3"\n' + STEP + OPTIONS,
         ["prices.machines.dgx1v.energy: unknown key"]),
        (HEAD + PRICES + STEP + OPTIONS + '[failures]\nmtbf = "0 h"\ncheckpoint = "1 m"\n',
         ["failures.mtbf: must be above 0 s", "failures.checkpoint: '1 m': unknown unit 'm'",
          "failures.restart: missing"]),
        (HEAD + PRICES + STEP + OPTIONS + '[stragglers]\ncompute = "0 s"\n',
         ["stragglers.compute: must have a mean above 0 s"]),
        (HEAD + PRICES + STEP + OPTIONS + 'step.variable_update = "parameter_server"\n'
         'strategy = "ring"\n',
         ["options[0].strategy: step.variable_update says how to reduce; give one"]),
    ],
)  # fmt: skip
def test_every_fault_is_named_with_its_place(asked, text, faults):
    """In one round, each behind the file's name."""
    with pytest.raises(InputError) as caught:
        asked(text)
    found = caught.value.problems

    assert all("mine.toml" in each for each in found)
    for fault in faults:
        assert any(fault in each for each in found), (fault, found)
    assert len(faults) == len(found)


@pytest.mark.parametrize("text", ["2 USD/h", "48 USD/d", "1460 USD/month", "17520 USD/year"])
def test_prices_per_time_are_per_hour(text):
    """A month has 730 hours."""
    assert Money(2.0, "USD", "h") == PRICE.read(text)


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (POWER, "500 W", 500.0),
        (POWER, "10.5 kW", 10_500.0),
        (POWER, "0.25 MW", 250_000.0),
        (ENERGY_PRICE, "0.25 USD/kWh", Money(0.25, "USD", "kWh")),
        (ENERGY_PRICE, "250 USD/MWh", Money(0.25, "USD", "kWh")),
    ],
)
def test_power_is_in_watts_and_energy_is_paid_per_kwh(quantity, text, value):
    assert value == quantity.read(text)


@pytest.mark.parametrize("text", ["1e308 USD/h", "2e15 USD", "1" + "0" * 40 + " JPY"])
def test_no_price_is_above_all_money(text):
    """Sums of such prices would not be numbers."""
    with pytest.raises(ValueError, match="too large"):
        PRICE.read(text)
