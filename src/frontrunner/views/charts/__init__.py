"""The figures of reports: described once as charts, drawn as HTML by Plotly and as PNG or SVG by matplotlib."""
