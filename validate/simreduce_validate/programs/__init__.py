"""Real programs read what simreduce exports for them: `make ask-programs`.

`cases` has the exports of each target with what they mean, `asking` makes a program's environment
and lets its script in `validate/programs` read them, `answers` stores what it understood.
"""
