"""The operator plane: health, metrics, introspection and the dashboard, on a bind of their own."""
