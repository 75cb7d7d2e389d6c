"""A plan, memory and an endpoint make an execution: the only room where a plan meets a transport."""
