"""The line: pins → sources → series → wheels → image → verify → publish."""
