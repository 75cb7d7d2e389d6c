"""Runtime: plans a call, binds the plan to memory and executes it on a transport.

    planning     makes a plan of a call and a choice, and binds it to memory
    execution    runs it: the interpreter and the compiled executor in C
    progress     progresses requests while the program computes
    events       logs calls, their times and the activities inside them

``context`` owns the state of one communicator and creates its endpoints.
"""
