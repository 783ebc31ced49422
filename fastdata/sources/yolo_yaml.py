"""``data.yaml``: what a YOLO dataset says about itself. Parsed, checked, nothing in it followed or run.

A ``download`` entry may hold a URL, a shell line or Python code; that it is there is remembered, what it says is not.

The file is read as a tree of nodes with line numbers and never turned into objects, so a message can name the line, a class
called ``no`` stays a word, and aliases cannot blow up: only the few known places are looked at, none deeper than three levels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastdata.errors import DataError

if TYPE_CHECKING:
    import yaml

SPLIT_KEYS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "test": "test", "minival": "minival"}
"""Keys that name a split, and the split they name. Where two name the same one, the first in this order holds."""

OTHER_KEYS = frozenset(
    "path names nc channels task kpt_shape flip_idx kpt_names masks_dir download roboflow format".split()
)
"""Keys that are known not to name a split."""

MAX_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One path as written, and its line (from 1)."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class DataYaml:
    """The statements of one data.yaml."""

    file: Path
    """Absolute, links not resolved."""
    path: Entry | None = None
    """``path``: the folder of the dataset, as written."""
    splits: dict[str, tuple[Entry, ...]] = field(default_factory=dict)
    """Folders and list files of each known split, in the order train, val, test, minival."""
    others: dict[str, tuple[Entry, ...]] = field(default_factory=dict)
    """Unknown keys that hold a text or a list of texts: splits, if the user says so."""
    names: tuple[str, ...] | None = None
    """Class names by index."""
    ids: tuple[int, ...] | None = None
    """Published id of each class, ascending, where they are not 0..n-1."""
    keypoints: int = 0
    keypoint_dims: int = 3
    keypoint_names: tuple[str, ...] = ()
    flip_idx: tuple[int, ...] = ()
    channels: str = ""
    """As written; "" where it is not stated."""
    task: str = ""
    """As written, which trainers do not: ``fastdata export`` says so what the columns of a row are."""
    has_download: bool = False


def read_yaml(file: Path) -> DataYaml:
    """Read and check a data.yaml.

    Raises:
        DataError: It is no YAML mapping, or a statement in it breaks its rule; starts with ``file:line``.
    """
    return _Reader(file).read()


def names_a_split(file: Path) -> bool:
    """Tell whether the file is YAML that has ``train`` or ``val`` in it: how a dataset file is told from any other."""
    try:
        keys = _Reader(file).nodes
    except DataError:
        return False
    return any(key in keys for key in SPLIT_KEYS)


class _Reader:
    """The top-level nodes of one file by key."""

    def __init__(self, file: Path) -> None:
        import yaml

        self.file = file
        try:
            tree = yaml.compose(file.read_bytes(), Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as err:
            line = err.problem_mark.line + 1 if err.problem_mark else 1
            raise DataError(f"{file.name}:{line}: must be YAML, got {err.problem or err.context}") from err
        except yaml.YAMLError as err:
            raise DataError(f"{file.name}:1: must be YAML in UTF-8, got {' '.join(str(err).split())}") from err
        except RecursionError as err:
            raise DataError(f"{file.name}:1: must be YAML of a few levels, got one nested too deep to read") from err
        if not isinstance(tree, yaml.MappingNode):
            raise DataError(f"{file.name}:1: must be a mapping such as 'train: images/train', got something else")
        self.nodes = self._pairs(tree, "data.yaml")

    def read(self) -> DataYaml:
        splits: dict[str, tuple[Entry, ...]] = {}
        others: dict[str, tuple[Entry, ...]] = {}
        for key, split in SPLIT_KEYS.items():
            if split not in splits and (entries := self._entries(key)):
                splits[split] = entries
        for key, node in self.nodes.items():
            if key not in SPLIT_KEYS and key not in OTHER_KEYS and self._holds_texts(node):
                others[key] = self._entries(key)
        names, ids = self._names()
        keypoints, dims = self._kpt_shape()
        return DataYaml(
            file=self.file,
            path=self._scalar("path"),
            splits=splits,
            others=others,
            names=names,
            ids=ids,
            keypoints=keypoints,
            keypoint_dims=dims,
            keypoint_names=self._kpt_names(keypoints),
            flip_idx=self._flip_idx(keypoints),
            channels=channels.text if (channels := self._scalar("channels")) else "",
            task=task.text if (task := self._scalar("task")) else "",
            has_download="download" in self.nodes,
        )

    def _names(self) -> tuple[tuple[str, ...] | None, tuple[int, ...] | None]:
        """Return names by index, and the published ids where they are not 0..n-1."""
        import yaml

        node = self._node("names")
        nc = self._scalar("nc")
        count = None if nc is None else self._whole(nc, "nc")
        if node is None:
            return (None if count is None else tuple(f"class {i}" for i in range(count))), None
        ids: list[int] | None = None
        if isinstance(node, yaml.SequenceNode):
            names = [self._text(item, "a name").text for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            by_id: dict[int, str] = {}
            for key, value in self._pairs(node, "names").items():
                entry = self._text(value, "a name")
                number = self._whole(Entry(key, entry.line), "the id of a name")
                if number in by_id:
                    raise self._error(entry.line, f"ids in names must differ, got {number} twice")
                by_id[number] = entry.text
            ids = sorted(by_id)
            names = [by_id[i] for i in ids]
        else:
            raise self._error(_line(node), f"names must be a list or a mapping of ids to names, got {node.value!r}")
        if not names:
            raise self._error(_line(node), "names must hold at least one name, got none")
        if ids == list(range(len(names))):
            ids = None
        if count is not None and count != len(names) and not (ids and count == ids[-1] + 1):
            assert nc is not None
            raise self._error(nc.line, f"nc must be the number of names ({len(names)}), got {count}")
        return tuple(names), (tuple(ids) if ids else None)

    def _kpt_shape(self) -> tuple[int, int]:
        node = self._node("kpt_shape")
        if node is None:
            return 0, 3
        numbers = self._numbers("kpt_shape")
        if len(numbers) != 2 or numbers[0] < 1 or numbers[1] not in (2, 3):
            raise self._error(_line(node), f"kpt_shape must be [keypoints, 2 or 3], got {list(numbers)}")
        return numbers[0], numbers[1]

    def _flip_idx(self, keypoints: int) -> tuple[int, ...]:
        node = self._node("flip_idx")
        if node is None or not keypoints:
            return ()
        numbers = self._numbers("flip_idx")
        if sorted(numbers) != list(range(keypoints)):
            rule = f"flip_idx must hold each of 0..{keypoints - 1} once (kpt_shape has {keypoints} keypoints)"
            raise self._error(_line(node), f"{rule}, got {list(numbers)}")
        return numbers

    def _kpt_names(self, keypoints: int) -> tuple[str, ...]:
        """Return the keypoint names; where each class has its own list, those of the first class."""
        import yaml

        node = self._node("kpt_names")
        if node is None or not keypoints:
            return ()
        if isinstance(node, yaml.MappingNode):
            lists = list(self._pairs(node, "kpt_names").values())
            if not lists:
                return ()
            node = lists[0]
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(_line(node), "kpt_names must be a list, or a mapping of class ids to lists, got something else")
        names = tuple(self._text(item, "a keypoint name").text for item in node.value)
        if len(names) != keypoints:
            raise self._error(_line(node), f"kpt_names must hold {keypoints} names (kpt_shape), got {len(names)}")
        return names

    def _entries(self, key: str) -> tuple[Entry, ...]:
        """Return the paths under a key: one or a list of them; () where it is absent or empty."""
        import yaml

        node = self._node(key)
        if node is None:
            return ()
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._text(item, f"a path of {key}") for item in node.value)
        return (self._text(node, key),)

    def _holds_texts(self, node: yaml.Node) -> bool:
        import yaml

        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return all(isinstance(i, yaml.ScalarNode) and i.tag == "tag:yaml.org,2002:str" and i.value for i in items)

    def _numbers(self, key: str) -> tuple[int, ...]:
        import yaml

        node = self.nodes[key]
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(_line(node), f"{key} must be a list of whole numbers, got something else")
        return tuple(self._whole(self._text(item, f"an item of {key}"), f"an item of {key}") for item in node.value)

    def _scalar(self, key: str) -> Entry | None:
        node = self._node(key)
        return None if node is None else self._text(node, key)

    def _node(self, key: str) -> yaml.Node | None:
        """Return the node of a key; ``None`` where it is absent or null."""
        node = self.nodes.get(key)
        return None if node is None or node.tag == "tag:yaml.org,2002:null" or node.value == "" else node

    def _text(self, node: yaml.Node, what: str) -> Entry:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            raise self._error(_line(node), f"{what} must be a single value, got a list or mapping")
        return Entry(node.value, _line(node))

    def _whole(self, entry: Entry, what: str) -> int:
        text = entry.text.strip()
        if not (text.isascii() and text.isdigit() and int(text[:11]) <= MAX_ID):
            raise self._error(entry.line, f"{what} must be a whole number from 0, got {entry.text!r}")
        return int(text)

    def _pairs(self, node: yaml.MappingNode, what: str) -> dict[str, yaml.Node]:
        """Return the values of a mapping by the text of their keys, in order; a key that comes twice is an error."""
        import yaml

        pairs: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(_line(key), f"a key of {what} must be a single value, got a list or mapping")
            if key.value in pairs:
                raise self._error(_line(key), f"a key of {what} must come once, got {key.value!r} again")
            pairs[key.value] = value
        return pairs

    def _error(self, line: int, text: str) -> DataError:
        return DataError(f"{self.file.name}:{line}: {text}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
