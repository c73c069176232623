"""The arithmetic of the factor completion, compiled: whatever touches the seen cells one by one."""
