"""The config: what is accepted, how it is changed, what its errors say."""

import tomllib
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.small_config import small_config
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._round.settings import SWITCHES, Settings, key_of
from fedgradnorm._toml import overridden, parse_value, to_toml
from fedgradnorm.experiments import run
from fedgradnorm.experiments._config.config_file import build, load_config, make_config

TEXT = """
method = "fedgradnorm"
epochs = 1
[data]
source = "radcom"
samples = 400
tasks = ["modulation", "snr"]
[network]
name = "mlp"
widths = [8]
[weighting]
gamma = 0.5
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def message(file, *words):
    with pytest.raises(ConfigError) as caught:
        load_config(file, words)
    text = str(caught.value)
    assert "\n" not in text
    assert str(file) in text
    return text


def test_defaults_are_those_of_settings(file):
    config = load_config(file)
    assert config.settings == Settings(epochs=1, seed=0)
    assert config.name == "small"
    assert config.output.folder == "runs"


def test_every_setting_is_a_key_of_its_group(file):
    table = load_config(file, [f"{group}=true" for group in SWITCHES]).table()
    for name in (field.name for field in fields(Settings)):
        group, _, key = key_of(name).rpartition(".")
        default = getattr(Settings(), name)
        assert default is None or key in (table[group] if group else table), name


def test_a_switch_is_true_false_or_a_table(file):
    assert load_config(file).settings.keep == "last"
    assert load_config(file, ["keep_best=true"]).settings.keep == "best"
    assert load_config(file, ["keep_best.per_client=true"]).settings.keep == "own_best"
    assert load_config(file, ["keep_best=true", "keep_best=false"]).settings.keep == "last"
    assert load_config(file, ["early_stopping=true"]).settings.patience == 5
    both = ["early_stopping=true", "early_stopping.watch=accuracy"]
    settings = load_config(file, both).settings
    assert (settings.patience, settings.watch, settings.keep) == (5, "accuracy", "last")
    with pytest.raises(ConfigError, match=r"early_stopping.patience = 0 |patience must be"):
        load_config(file, ["early_stopping.patience=0"])
    with pytest.raises(ConfigError, match=r"'early_stopping.patiense'; did you mean 'patience'"):
        load_config(file, ["early_stopping.patiense=2"])
    with pytest.raises(ConfigError, match=r"'patience'; did you mean 'early_stopping.patience'"):
        load_config(file, ["patience=2"])
    with pytest.raises(
        ConfigError, match="keep_best must be true, false or a table of its settings"
    ):
        load_config(file, ["keep_best=best"])


def test_overrides(file):
    words = ["epochs=3", "weighting.gamma=0.7", "seed=2", "compute.device=cpu"]
    config = load_config(file, words)
    assert config.settings == Settings(epochs=3, seed=2, device="cpu")
    assert config.weighting == {"gamma": 0.7}


def test_a_number_is_the_same_however_it_is_written(file):
    one, other = (load_config(file, [f"lr={n}", f"local.clip={n}"]) for n in ("1", "1.0"))
    assert one.text() == other.text()


def test_rounds_replace_epochs(file):
    assert load_config(file, ["rounds=7"]).settings == Settings(rounds=7)


def test_another_method_takes_the_options_it_knows(file):
    assert load_config(file, ["method=fedrep"]).weighting == {}
    assert load_config(file, ["method=fedgradnorm-direct"]).weighting == {"gamma": 0.5}
    assert load_config(file, ["method=fedper"]).settings.phases == "joint"


def test_none_means_no_limit(file):
    config = load_config(file, ["local.batch_size=none"])
    assert config.settings.batch_size is None
    assert make_config(tomllib.loads(config.text())).settings.batch_size is None
    assert load_config(file, ["sharing.share=none"]).settings.share == "none"


@pytest.mark.parametrize(
    "word",
    ["method=fedper", "method=central", "server.participation=0.5", "sharing.norm_layer=[\"1\"]",
     "local.head_optimizer={name=\"sgd\", lr=0.1}", "name=with-dash", "seed=7"],
)  # fmt: skip
def test_resolved_config_reads_back_the_same(file, word):
    config = load_config(file, [word])
    again = make_config(tomllib.loads(config.text()))
    assert again.table() == config.table()
    assert again.settings == config.settings


def test_resolved_config_can_change_its_method(file):
    text = load_config(file, ["method=fedper"]).text()
    file.write_text(text)
    assert load_config(file, ["method=fedrep"]).settings.phases == "alternating"


def test_build_starts_the_network_from_the_seed_and_leaves_the_generator_alone(file):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, clients, weighting, settings = build(load_config(file, ["seed=3"]))
    second = build(load_config(file, ["seed=3"]), clients)[0]
    other = build(load_config(file, ["seed=4"]), clients)[0]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first[1].weight, second[1].weight)
    assert not torch.equal(first[1].weight, other[1].weight)
    assert [client.name for client in clients] == ["modulation", "snr"]
    assert weighting.gamma == 0.5
    assert settings.seed == 3


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("epoch=3", "unknown key 'epoch'; did you mean 'epochs'?"),
        ("metod=fedrep", "unknown key 'metod'; did you mean 'method'?"),
        ("method=fedgradnrm", "unknown method 'fedgradnrm'; did you mean 'fedgradnorm'?"),
        ("weighting.gama=1", "did you mean 'gamma'?"),
        ("weighting.gamma=-1", "gamma must be >= 0, not -1"),
        ("weighting.gamma=big", "must be a number, not 'big'"),
        ("lr=fast", "lr must be a number, not 'fast'"),
        ("rounds=2.5", "rounds must be a whole number >= 1, not 2.5"),
        ("local.batch_size=true", "local.batch_size must be a whole number >= 1, not True"),
        ("local.phases=jiont", "did you mean 'joint'?"),
        ("local.head_optimizer=adamm", "did you mean 'adam'?"),
        ("server.server_optimizer=sdg", "did you mean 'sgd'?"),
        ("local.head_steps=-1", "head_steps must be a whole number >= 0, not -1"),
        ("local=3", "local must be fgn.Local(...) or a table of its settings, not 3"),
        ("epochs.x=3", "epochs is no table"),
        ("seed=-1", "seed must be a whole number >= 0, not -1"),
        ("seed=one", "seed must be a whole number >= 0, not 'one'"),
        ("name=a/b", "name = 'a/b'"),
        ("output.foldr=x", "did you mean 'folder'?"),
        ("data.when=2020-01-01", "a config cannot hold"),
        ("epochs", "'epochs' is not key=value"),
        ("=3", "is not key=value"),
    ],
)
def test_one_line_errors(file, word, says):
    assert says in message(file, word)


def test_method_and_setting_in_conflict(file):
    text = message(file, "method=local", "sharing.share=all")  # a default, but somebody said it
    assert "sharing.share = 'all' conflicts with method 'local'" in text
    text = message(file, "method=central", "server.participation=0.5")
    assert "conflicts with method 'central'" in text


def test_a_misspelt_option_does_not_vanish_with_the_method(file):
    file.write_text(TEXT.replace("gamma", "gama"))
    assert "did you mean 'gamma'" in message(file, "method=fedrep")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = = 1", "not TOML"),
        ("\x00", "not TOML"),
        ("", "data is missing; add the table [data] with source: where the clients come from"),
        ("[data]\nsource = 'radcom'", "network is missing; add the table [network] with name"),
        ("[data]\nsamples = 3\n[network]\nname = 'mlp'", "data.source is missing: where"),
        ("[data]\nsource = 'radcom'\n[nework]\nname = 'mlp'", "did you mean 'network'"),
    ],
)
def test_bad_files(file, text, says):
    file.write_text(text)
    assert says in message(file)


def test_missing_and_unreadable_files(tmp_path):
    assert "no such file" in message(tmp_path / "nothing.toml")
    assert "cannot be read" in message(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"name = '\xff'")
    assert "not TOML" in message(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("data.source=radcmo", "did you mean 'radcom'?"),
        ("data.sampels=3", "did you mean 'samples'?"),
        ("data.pth=x", "did you mean 'path'?"),
        (
            "data.lr=0.1",
            "takes no 'lr', which is a key of the whole run: in a file, it belongs above",
        ),
        (
            "network.method=fedrep",
            "network 'mlp' takes no 'method', which is a key of the whole run",
        ),
        ("data.samples=many", "must be a whole number, not 'many'"),
        ("data.tasks=[1]", "unknown task '1'"),
        ("data.loss_scale=3", "wrong kind"),
        ("network.name=network3", "did you mean 'network"),
        ("network.withs=[1]", "did you mean 'widths'?"),
        ("network.widths=[0]", "widths must be whole numbers"),
        ("network.widths=8", "widths"),
        ("network.activation=rleu", "did you mean 'relu'?"),
    ],
)
def test_bad_data_and_network_options(file, word, says):
    with pytest.raises(ConfigError) as caught:
        build(load_config(file, [word]))
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{file} with {word}: ")


def test_own_files_are_found_beside_the_config(tmp_path):
    (tmp_path / "a.csv").write_text("u,v,y\n" + "1,2,a\n3,5,b\n" * 4)
    path = tmp_path / "own.toml"
    path.write_text(
        "[data]\nsource = 'files'\nstandardize = true\n"
        "[[data.clients]]\nname = 'one'\ntask = 'classification'\ntrain = 'a.csv'\n"
        "targets = 'y'\n[network]\nname = 'mlp'\nwidths = [4]\n"
    )
    config = load_config(path)
    assert config.data.model_extra["base"] == str(tmp_path)
    _, clients, _, _ = build(config)
    assert clients[0].labels == ("a", "b")
    assert clients[0].scaling is not None
    again = make_config(tomllib.loads(config.text()))
    assert again.table() == config.table()


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_toml_reads_back_exactly(table):
    assert tomllib.loads(to_toml(table)) == table


@given(st.text(max_size=12))
def test_any_text_is_a_value(text):
    parse_value(text)


@pytest.mark.parametrize("words", ["rounds=3 epochs=none", "epochs=none rounds=3", "rounds=3"])
def test_rounds_take_the_place_of_epochs(words):
    changed = overridden({"epochs": 9}, words.split())
    assert changed["rounds"] == 3
    assert changed.get("epochs", "none") == "none"


def test_overriding_leaves_the_original_alone():
    table = {"a": {"b": 1}}
    assert overridden(table, ["a.b=2", "c.d=[1, 2]"]) == {"a": {"b": 2}, "c": {"d": [1, 2]}}
    assert table == {"a": {"b": 1}}


def test_a_config_that_was_changed_does_not_resume_a_run(tmp_path):
    config = load_config(small_config(tmp_path), ["server.server_schedule=cosine"])
    run(config, tmp_path / "run")
    assert run(config, tmp_path / "run", resume=True).finished
    changed = config.variant(config.method, config.seed, {"lr": 0.5})
    with pytest.raises(RunFolderError, match=r"other settings \(lr = .* there, 0\.5 here\)"):
        run(changed, tmp_path / "run", resume=True)


def test_a_key_of_the_run_below_a_table_is_told_its_place(file):
    file.write_text(TEXT.replace("[network]", "[network]\nlr = 0.1"))
    with pytest.raises(ConfigError, match=r"takes no 'lr', .* above the first \[table\]"):
        build(load_config(file))
