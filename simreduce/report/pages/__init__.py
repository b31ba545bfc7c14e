"""Reports as one HTML file that needs nothing else: pure functions of documents."""

from simreduce.report.blocks import Page, TimelineBlock
from simreduce.report.pages.html import check_pages, page_html, page_parts, read_document
from simreduce.report.pages.kinds import KINDS, Attachments, make_page
from simreduce.report.timelines import timeline_of_threads

__all__ = [
    "KINDS",
    "Attachments",
    "Page",
    "TimelineBlock",
    "check_pages",
    "make_page",
    "page_html",
    "page_parts",
    "read_document",
    "timeline_of_threads",
]
