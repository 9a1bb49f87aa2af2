"""The robustness report of a study: ledger in, one offline HTML file and its JSON twin out.

Imports neither Ray nor torch. Start at `report.write`; panels live in `panels/`, one file per question.
"""
