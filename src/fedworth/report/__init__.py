"""From numbers to tables, pictures, pages."""
