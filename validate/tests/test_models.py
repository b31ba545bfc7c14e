"""Keras models by layer: work and gradients of small models by hand, of keras.applications against
Keras and what comes with simreduce, and the command.
"""

from __future__ import annotations

import subprocess
import sys
from math import prod
from zipfile import ZipFile

import pytest
import tensorflow as tf
from simreduce_validate.models.source import load
from simreduce_validate.models.tracing import read, specs, traced
from tensorflow import keras

from simreduce.errors import InputError
from simreduce.workload.loader import load_model
from validate.tests.commands import document

L = keras.layers


def found(model, *shapes):
    return traced(model, specs(model, shapes))


def layers(model, *shapes):
    """Name, gradients' elements, FLOPs forward and backward by layer, without any note."""
    read_, notes = found(model, *shapes)

    assert [] == notes
    return [
        (row.name, [g.elements for g in row.gradients], row.forward, row.backward)
        for row in read_.layers
    ]


def alone(layer, shape):
    """The one layer of a model, that reads what it is given."""
    given = keras.Input(shape)
    ((_, elements, forward, backward),) = layers(keras.Model(given, layer(given)))

    assert elements == [prod(v.shape) for v in layer.trainable_variables]
    # Of what is given nobody needs the gradient; but a convolution in groups is one compiled
    # function, as its gradients are.
    assert (2 if getattr(layer, "groups", 1) > 1 else 1) * forward == backward
    return forward


@pytest.mark.parametrize(
    ("layer", "shape", "multiplications"),
    [
        (L.Dense(5), (7,), 7 * 5),
        (L.Dense(5, use_bias=False), (3, 7), 3 * 7 * 5),
        (L.Conv1D(5, 3, padding="same"), (16, 4), 16 * 3 * 4 * 5),
        (L.Conv2D(6, (3, 5), padding="same"), (8, 10, 4), 8 * 10 * 3 * 5 * 4 * 6),
        (L.Conv2D(6, 3, strides=2), (9, 9, 4), 4 * 4 * 9 * 4 * 6),
        (L.Conv2D(6, 3, dilation_rate=2), (10, 10, 4), 6 * 6 * 9 * 4 * 6),
        (L.Conv2D(6, 3, groups=2, padding="same"), (8, 8, 4), 8 * 8 * 9 * 2 * 6),
        (L.Conv3D(6, 3, padding="same"), (4, 5, 6, 2), 4 * 5 * 6 * 27 * 2 * 6),
        (L.DepthwiseConv2D(3, depth_multiplier=2, padding="same"), (8, 8, 4), 8 * 8 * 9 * 4 * 2),
        (L.SeparableConv2D(6, 3, padding="same"), (8, 8, 4), 8 * 8 * (9 * 4 + 4 * 6)),
        (L.Conv2DTranspose(6, 3, strides=2, padding="same"), (8, 8, 4), 8 * 8 * 9 * 4 * 6),
        (L.EinsumDense("abc,cd->abd", output_shape=(None, 6)), (5, 4), 5 * 4 * 6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_work_of_a_layer_by_hand(layer, shape, multiplications):
    """Two FLOPs each; the same again for the gradients of its weights. A transposed convolution
    multiplies what it reads.
    """
    if isinstance(layer, L.SeparableConv2D):
        given = keras.Input(shape)
        ((_, _, forward, backward),) = layers(keras.Model(given, layer(given)))
        depthwise, pointwise = 8 * 8 * 9 * 4, 8 * 8 * 4 * 6

        assert (2 * (depthwise + pointwise), 2 * (depthwise + 2 * pointwise)) == (forward, backward)
    else:
        assert 2 * multiplications == alone(layer, shape)


def test_layers_come_in_the_order_of_the_forward_pass_with_twice_the_work_backward():
    """But for the first one. What has no variable and no product is no layer."""
    given = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same", name="one")(given)
    x = L.BatchNormalization(name="norm")(x)
    x = L.Flatten()(L.MaxPooling2D()(L.ReLU()(x)))
    model = keras.Model(given, L.Dense(10, activation="softmax", name="two")(x))
    one, two = 2 * 64 * 27 * 4, 2 * 64 * 10

    assert [
        ("one", [108, 4], one, one),
        ("norm", [4, 4], 0, 0),
        ("two", [640, 10], two, 2 * two),
    ] == layers(model)


def test_a_layer_that_is_called_twice_is_two_of_which_the_first_has_the_gradients():
    """They are complete when back-propagation has come to the first call."""
    given, shared = keras.Input((4,)), L.Dense(4, name="shared")
    model = keras.Model(given, shared(L.Dense(4, name="between")(shared(given))))

    assert [
        ("shared", [16, 4], 32, 32), ("between", [16, 4], 32, 64), ("shared#2", [], 32, 64)
    ] == layers(model)  # fmt: skip


def test_models_within_models_are_named_by_their_path():
    """Functional, sequential, and of a class of one's own."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.inner = keras.Sequential(
                [L.Dense(3, name="a"), L.Dense(2, name="b")], name="inner"
            )
            self.weight = self.add_weight(shape=(2, 5), name="weight")

        def call(self, x):
            return keras.ops.matmul(self.inner(x), self.weight)

    given = keras.Input((4,))
    model = keras.Model(given, L.Dense(2, name="last")(Own()(given)))

    assert [
        ("own/inner/a", [12, 3], 24, 24), ("own/inner/b", [6, 2], 12, 24), ("own", [10], 20, 40),
        ("last", [10, 2], 20, 40),
    ] == layers(model)  # fmt: skip


def test_attention_has_the_products_of_two_activations():
    """Between its projections, and with the gradients of both."""
    given = keras.Input((6, 8))
    attention = L.MultiHeadAttention(2, 4, name="mha")
    model = keras.Model(given, attention(given, given))
    rows = layers(model)
    projection, scores = 2 * 6 * 8 * 8, 2 * 2 * 6 * 6 * 4

    assert [("mha/query", projection), ("mha/key", projection), ("mha/value", projection),
    ("mha", 2 * scores),
            ("mha/attention_output", projection)] == [(name, forward) for name, _, forward,
            _ in rows]  # fmt: skip
    assert [projection] * 3 + [4 * scores, 2 * projection] == [backward for *_, backward in rows]
    assert model.count_params() == sum(sum(elements) for _, elements, _, _ in rows)


def test_a_loop_is_as_many_times_its_body():
    """An LSTM of 7 steps. Building the graph calls its cell once more, which nobody runs."""
    given = keras.Input((7, 4))
    rows = layers(keras.Model(given, L.LSTM(5)(given)))
    step = 2 * (4 * 20 + 5 * 20)

    assert 7 * step == sum(forward for _, _, forward, _ in rows)
    assert [4 * 20, 5 * 20, 20] == [n for _, elements, _, _ in rows for n in elements]
    # The loop of the gradients makes those of all that the loop reads, the sequence too.
    assert 7 * 2 * step == sum(backward for *_, backward in rows)


def test_what_is_frozen_has_no_gradients_and_less_work():
    """Below the first trainable layer nothing is computed backward."""
    given = keras.Input((4,))
    frozen = L.Dense(4, name="frozen", trainable=False)
    x = L.Dense(4, name="trained")(frozen(given))
    model = keras.Model(given, L.Dense(4, name="above", trainable=False)(x))

    assert [("frozen", [], 32, 0), ("trained", [16, 4], 32, 32), ("above", [], 32, 32)] == layers(
        model
    )


def test_work_that_nobody_counts_is_told():
    """By layer and op; and what a gradient is otherwise than dense, or not at all."""

    class Spectrum(L.Layer):
        def build(self, _):
            self.unused = self.add_weight(shape=(3,), name="unused")

        def call(self, x):
            return tf.math.real(tf.signal.fft(tf.cast(x, tf.complex64)))

    given = keras.Input((6,), dtype="int32")
    x = L.Embedding(10, 4, name="embedding")(given)
    model, notes = found(keras.Model(given, L.Dense(3, name="dense")(Spectrum(name="spectrum")(x))))

    assert [("embedding", 40), ("spectrum", 0), ("dense", 15)] == [
        (layer.name, sum(g.elements for g in layer.gradients)) for layer in model.layers
    ]
    assert "spectrum: 2 x FFT: not counted" in notes or "spectrum: 1 x FFT: not counted" in notes
    assert [True, False, True] == [layer.counted for layer in model.layers]
    assert "spectrum/unused: it has no gradient, and is left out" in notes
    assert "embedding/embeddings: its gradient is some rows, and counts as all of them" in notes


def test_mixed_precision_keeps_gradients_in_the_dtype_of_the_variables():
    given = keras.Input((4,))
    model, _ = found(keras.Model(given, L.Dense(4, dtype="mixed_bfloat16")(given)))
    narrow, _ = found(keras.Model(given, L.Dense(4, dtype="float16")(given)))

    assert [0, 0] == [g.dtype for g in model.workload.gradients]
    assert [1, 1] == [g.dtype for g in narrow.workload.gradients]


def test_what_a_sample_is_may_be_left_open():
    model = keras.Sequential([L.Dense(3)], name="open")
    with pytest.raises(InputError, match="open: it does not say what it takes; give the shape"):
        specs(model, [])
    text = keras.Sequential([keras.Input((None,), name="tokens"), L.Embedding(10, 4)], name="text")
    with pytest.raises(InputError, match=r"text: it takes tokens \(\?\); give the shape"):
        specs(text, [])
    with pytest.raises(InputError, match=r"text: 2 --input, and it takes 1: tokens \(\?\)"):
        specs(text, [((3,), ""), ((3,), "")])
    with pytest.raises(InputError, match="give the shape of each"):
        specs(text, [((3, 4), "")])

    assert [("dense", [21, 3], 42, 42)] == [
        ("dense", *row[1:]) for row in layers(model, ((7,), ""))
    ]
    assert [1, 12] == specs(text, [((12,), "int32")]).shape


APPLICATIONS = {
    "VGG16": "vgg16",
    "ResNet50": "resnet50",
    "ResNet101": "resnet101",
    "InceptionV3": "inception3",
}


@pytest.mark.parametrize(
    "name", ["MobileNetV2", *(pytest.param(n, marks=pytest.mark.slow) for n in APPLICATIONS)]
)
def test_applications_have_the_parameters_that_keras_counts(name):
    """All trainable ones; and the work of the models that come with simreduce, whose last layer has
    1001 classes.
    """
    model = load(name, None)
    ours, notes = found(model)

    assert [] == notes
    assert sum(prod(v.shape) for v in model.trainable_variables) == ours.workload.elements
    assert [v.path for v in model.trainable_variables] == [g.name for g in ours.workload.gradients]
    if name in APPLICATIONS:
        like = load_model(APPLICATIONS[name])
        assert like.forward == pytest.approx(ours.forward, rel=1e-6)
        assert like.flops == pytest.approx(ours.flops, rel=1e-6)
    else:
        assert 300e6 == pytest.approx(
            ours.forward / 2, rel=0.01
        )  # Sandler et al. 2018, table 4: 300M multiply-adds


def test_names_that_are_no_model_are_told_with_the_nearest(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text("def build():\n    return 3\n", "utf-8")
    (tmp_path / "broken.keras").write_text("no zip", "utf-8")
    (tmp_path / "empty.h5").touch()
    (tmp_path / "folder.keras").mkdir()
    with ZipFile(tmp_path / "other.keras", "w") as archive:
        archive.writestr("config.json", "{")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    for text, message in (
        ("ResNet5", r"no Keras model 'ResNet5' \(did you mean 'ResNet50'\?\)"),
        ("of_me:build", "there is no module 'of_me'"),
        ("of_mine:biuld", r"of_mine has no 'biuld' \(did you mean 'build'\?\)"),
        ("of_mine:build", "gives 3, which is no keras.Model"),
        (
            "broken.keras",
            "broken.keras: is no model that Keras has saved: a .keras file is a zip archive",
        ),
        ("missing.keras", "missing.keras: there is no such file"),
        ("folder.keras", "folder.keras: is a directory, not a file"),
        ("empty.h5", "empty.h5: Keras cannot load it: "),
        ("other.keras", "other.keras: Keras cannot load it: "),
        (":build", "write PACKAGE.MODULE:FUNCTION"),
    ):
        with pytest.raises(InputError, match=message):
            load(text, None)


_FAULTY = """import helping, keras

def build():
    return helping.model()

def needs(size):
    return size

def ends():
    raise SystemExit(3)

class Odd(keras.layers.Layer):
    def call(self, x):
        return x.missing

class Late(keras.Model):
    def call(self, x):
        return Odd()(x)
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("build", r"faulty:build: {0}/helping.py:2, in model: KeyError: 'size'"),
        (
            "needs",
            "faulty:needs: it is called without arguments: missing a required argument: 'size'",
        ),
        ("ends", r"faulty:ends: {0}/faulty.py:10, in ends: SystemExit: 3"),
        (
            "Late",
            (
                r"faulty:Late: {0}/faulty.py:14, in call: AttributeError: .* has no attribute "
                r"'missing'"
            ),
        ),
        (
            "keras",
            (
                "faulty:keras: is <module 'keras' .*, neither a keras.Model nor a function that "
                "returns one"
            ),
        ),
    ],
)
def test_what_goes_wrong_in_the_user_s_code_is_told_with_its_place(
    tmp_path, monkeypatch, name, says
):
    """Its file and line, whoever called it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty.py").write_text(_FAULTY, "utf-8")
    for module in ("faulty", "helping"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "helping.py").write_text("def model():\n    return {}['size']\n", "utf-8")

    with pytest.raises(InputError, match=says.format(tmp_path)):
        read(f"faulty:{name}", [((4,), "")])


def test_a_module_that_cannot_be_read_is_told_with_its_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unread.py").write_text("x = 1\ndef f(:\n", "utf-8")
    (tmp_path / "lacks.py").write_text("import nothing_like_this\n", "utf-8")

    with pytest.raises(InputError, match=rf"unread:f: {tmp_path}/unread.py:2: SyntaxError: "):
        load("unread:f", None)
    with pytest.raises(
        InputError, match=rf"lacks:f: {tmp_path}/lacks.py:1, in <module>: ModuleNotFoundError: "
    ):
        load("lacks:f", None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras 3.15 with NumPy 2
def test_a_saved_model_is_the_model_that_was_saved(tmp_path):
    given = keras.Input((8, 8, 3))
    model = keras.Model(given, L.Dense(3)(L.Flatten()(L.Conv2D(2, 3)(given))))
    path = str(tmp_path / "saved.keras")
    model.save(path)

    assert found(model)[0].layers == read(path, [])[0].layers


def test_the_command_writes_what_a_step_takes(tmp_path):
    """A model of one's own, from the folder that one is in."""
    (tmp_path / "mine.py").write_text(
        "import keras\n"
        "def build():\n"
        "    print('not on stdout')\n"
        "    return keras.Sequential([keras.layers.Dense(64, name='a'), keras.layers.Dense(10, "
        "name='b')])\n",
        "utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", "model", "mine:build", "--input", "32"],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (0, "") == (done.returncode, done.stderr)
    (tmp_path / "mine.toml").write_text(done.stdout, "utf-8")
    (tmp_path / "step.toml").write_text(
        'title = "mine"\ntopology = "switch:4"\nworkload = "mine.toml"\nstrategies = ["ring"]\n'
        '[step]\nbatch = 8\nrate = "1 GFLOP/s"\n',
        "utf-8",
    )
    model = load_model(str(tmp_path / "mine.toml"))
    step = document("step step.toml", tmp_path)

    assert [("a", 4096.0, 4096.0), ("b", 1280.0, 2560.0)] == [
        (row.name, row.forward, row.backward) for row in model.layers
    ]
    assert 8 * (4096 + 1280) / 1e9 == pytest.approx(8 * model.forward / 1e9)
    assert model.name == step["workload"] == "sequential"
