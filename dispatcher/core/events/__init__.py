"""Every event and every action,
and who listens. Outside the runner only this part of core is imported.
"""
