"""A report for people: `report_document` decides its content, `text` and `markdown` its form."""
