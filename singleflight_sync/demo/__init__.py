"""The demo: three short stories, told by real processes, every claim of which is checked.

`story` tells them, act by `act` on a `stage`; `cast` keeps the processes, `caller` is what such a process runs,
`witness` counts in Redis, `picture` draws, `shelter` cleans up.
"""
