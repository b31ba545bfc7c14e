"""Tables and documents: pure functions of results."""

from simreduce.report.bench import bench_document, bench_table, folded_lines, nccl_tests_document
from simreduce.report.busbw import algbw, busbw
from simreduce.report.explain import explanation_document, explanation_text
from simreduce.report.ranking import how_lines, ranking_document, ranking_table
from simreduce.report.replicas import replicas_document, replicas_text
from simreduce.report.steps import step_document, step_table

__all__ = [
    "algbw",
    "bench_document",
    "bench_table",
    "busbw",
    "explanation_document",
    "explanation_text",
    "folded_lines",
    "how_lines",
    "nccl_tests_document",
    "ranking_document",
    "ranking_table",
    "replicas_document",
    "replicas_text",
    "step_document",
    "step_table",
]
