"""Running: a plan, memory and an endpoint make an execution. Only here a plan meets a transport.

    planning     from a call and a choice to a plan, and the plan put onto memory
    execution    runs it: the interpreter, the compiled executor and its C, NCCL
    progress     progresses requests while the program computes
    events       records what was called, when, and what a rank did inside of it

``context`` owns all of it for a communicator: a new endpoint is made there.
"""
