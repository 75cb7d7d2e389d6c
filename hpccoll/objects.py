"""placeholder under construction"""
class Objects:
    pass
