"""Reports as one HTML file that needs nothing else: pure functions of documents."""

from simreduce.pages.documents import read_document
from simreduce.pages.html import check_pages, page_html, page_parts
from simreduce.pages.kinds import KINDS, Beside, make_page
from simreduce.pages.kinds.defaults import answer_row
from simreduce.pages.timeline import Timeline, timeline_of_events
from simreduce.pages.values import Page

__all__ = [
    "KINDS",
    "Beside",
    "Page",
    "Timeline",
    "answer_row",
    "check_pages",
    "make_page",
    "page_html",
    "page_parts",
    "read_document",
    "timeline_of_events",
]
