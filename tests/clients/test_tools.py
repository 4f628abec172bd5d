"""Programs that are no libraries: grpcurl, guidellm and aiperf, each as its users run it.

Environment: BATON_CLIENTS_TOOLS, a folder with the programs `grpcurl`, `guidellm` and `aiperf`; one
that is missing there is skipped.
"""
