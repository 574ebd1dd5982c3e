"""Words that both sides read alike, by the sort of thing that they say."""

from __future__ import annotations

WORDS = {
    "value": ["lr=0.1", "+model.depth=3", "++optimizer.name=adam", "data=/data/train.csv", "train.steps=1_000"],
    "group": ["model=resnet", "db@src=mysql", "~db/engine", "~seed"],
    "quoted": ["note='hello, world'", 'note="it is"', "note=a\\,b"],
    "list or map": ["layers=[64,64,32]", "optimizer={name:adam,betas:[0.9,0.999]}", "tags=['a b',c]"],
    "reference": ["out=${root}/run", "size=${model.depth}"],
    "sweep": ["lr=1e-3,1e-4,1e-5", "name=choice(a,b,c)", "depth=range(1,10,2)"],
}
EVERY = [word for words in WORDS.values() for word in words]


def words_of(way: str) -> list[str]:
    """The words of one sort, or of all."""
    return WORDS.get(way, EVERY)


def cycled(way: str, count: int) -> list[str]:
    """So many words of a sort, round and round."""
    words = words_of(way)
    return [words[index % len(words)] for index in range(count)]
