"""A report as people read it. `report_document` decides what is said, `text` and `markdown` how it looks."""
