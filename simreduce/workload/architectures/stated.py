"""A decoder by its figures, as text: `transformer:layers=48,hidden=8192,heads=64,vocab=51200`.

The keys have the words of Megatron-LM and of configurations on Hugging Face.
"""

from __future__ import annotations

from simreduce.errors import WorkloadError
from simreduce.files.formats import Faults, Field, Format, choice, whole
from simreduce.workload.architectures.decoder import Decoder

STATED = "transformer:"
EXAMPLE = "transformer:layers=48,hidden=8192,heads=64,vocab=51200"
_MOST = 10**6
_COUNT = whole(1, _MOST)
_FLAG = choice(("yes", "no"), "answer")

SHAPE = Format(
    "transformer",
    "A decoder of equal blocks, by its figures.",
    Field("layers", _COUNT, "Blocks.", required=True),
    Field("hidden", _COUNT, "The width of a block.", required=True),
    Field("heads", _COUNT, "Heads of attention.", required=True),
    Field("vocab", _COUNT, "Words, with padding.", required=True),
    Field("seq", whole(1, 10**7), "Tokens of a sequence.", 2048),
    Field("groups", _COUNT, "Groups of heads with keys and values of their own.",
          default_words="`heads`"),
    Field("head", _COUNT, "The width of a head.", default_words="`hidden` / `heads`"),
    Field("ffn", _COUNT, "The inner width of a feed-forward part.", default_words="4 `hidden`"),
    Field("gated", _FLAG, "Whether feed-forward parts are gated, as SwiGLU is; then there are no"
          " biases, no dropout and no learned positions unless stated.", "no"),
    Field("bias", _FLAG, "Whether products have biases.", default_words="`no` if gated"),
    Field("dropout", _FLAG, "Whether there is dropout.", default_words="`no` if gated"),
    Field("positions", _FLAG, "Whether positions are learned, not rotary.",
          default_words="`no` if gated"),
    Field("tied", _FLAG, "Whether the output is the embedding.", default_words="`no` if gated"),
    Field("experts", whole(0, _MOST), "Experts in place of a feed-forward part.", 0),
    Field("topk", _COUNT, "Experts that a token passes through.", default_words="2"),
    Field("expert_ffn", _COUNT, "The inner width of an expert.", default_words="`ffn`"),
    Field("shared", whole(0, _MOST), "Experts that every token passes through besides.", 0),
    Field("dense", whole(0, _MOST), "Blocks at the beginning without experts.", 0),
)  # fmt: skip


def read_shape(text: str) -> Decoder:
    """The figures that `text` states; WorkloadError lists every fault."""
    faults, pairs = Faults(text), dict[str, object]()
    for option in text.removeprefix(STATED).split(","):
        key, _, value = option.partition("=")
        if key in pairs:
            faults.add(key, "is given twice")
        pairs[key] = int(value) if value.isdecimal() and len(value) < 10 else value
    values = SHAPE.read(pairs, faults)
    faults.raise_any(WorkloadError)
    plain = values["gated"] == "no"

    def says(key: str) -> bool:
        return values[key] == "yes" or (values[key] is None and plain)

    hidden, heads, experts = values["hidden"], values["heads"], values["experts"]
    groups, ffn, active = values["groups"] or heads, values["ffn"] or 4 * hidden, values["topk"]
    if not values["head"] and hidden % heads:
        faults.add("heads", f"{heads} do not share {hidden} evenly; give head")
    if heads % groups:
        faults.add("groups", f"{groups} do not share {heads} heads evenly")
    if experts and (active or 2) > experts:
        faults.add("topk", f"{active or 2} of {experts} experts")
    for key in ("topk", "expert_ffn", "shared", "dense"):
        if values[key] and not experts:
            faults.add(key, "there are no experts")
    if experts and values["dense"] >= values["layers"]:
        faults.add("dense", f"leaves none of {values['layers']} layers for experts")
    faults.raise_any(WorkloadError)
    return Decoder(
        values["layers"], hidden, heads, groups, values["head"] or hidden // heads, ffn,
        values["vocab"], values["seq"], experts, (active or 2) if experts else 0,
        values["expert_ffn"] or (ffn if experts else 0), values["shared"], values["dense"],
        gated=not plain, bias=says("bias"), dropout=says("dropout"), tied=says("tied"),
        positions=values["seq"] if says("positions") else 0,
    )  # fmt: skip
