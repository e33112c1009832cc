"""The audit's report page: one self-contained HTML file. `gpuwarden audit` calls `page.render`."""
