"""What to make of each metric: the rooms of docs/metrics.md, and what to look at or to change when a figure moves.

Names are as Prometheus asks for them (a counter ends in `_total`). A test holds that the registry has exactly these.
"""

from __future__ import annotations

SAME_AS_VLLM = "The same under OpenTelemetry's name, for dashboards that go by it."
AGENT_TOKENS = "Against each other and over time: what an agent costs, and whether its prompts keep their beginning."
SIZE = "Growth to plan the disk and the memory by."

ROOMS: dict[str, dict[str, str]] = {
    "The daemon": {
        "acu_ready": "0 for long: `acu status` and `/readyz` say which model is not ready, and why.",
        "acu_draining": (
            "1: it was told to stop, and finishes what runs. For longer than `daemon.drain_timeout_s`: see its log."
        ),
        "acu_build_info": "Join it to others to see which version a change came with.",
        "acu_loop_lag_seconds": (
            "Above 0.1 s: the daemon lacks CPU (`acu doctor`), or something blocks its loop; its log names stalls."
        ),
        "process_cpu_seconds_total": (
            "A rate near 1 is one CPU full: the daemon's loop is then the limit, not the engine."
        ),
        "process_resident_memory_bytes": "Against `acu_data_memory_cap_bytes` and the unit's MemoryMax.",
        "process_open_fds": (
            "Against `process_max_fds`. Near it connections are refused: lower `network.max_connections`, or raise "
            "LimitNOFILE."
        ),
        "process_max_fds": "The limit itself.",
        "acu_log_records_dropped_total": (
            "It moves: who reads the log (journald, a pipe) is too slow, or `daemon.log_level` says too much."
        ),
        "acu_audit_lines_dropped_total": (
            "It moves: the disk of `daemon.audit_log` is full or slow; lines are lost for good."
        ),
        "acu_numa_local_ratio": "Below 0.98: memory lies on another node; docs/numa.md says what to do.",
    },
    "Connections": {
        "acu_http_requests_total": (
            "Rates by status: 429 and 503 are overload, 500 is a defect, for which the log has the request's id. "
            "Route `-`: what was no request."
        ),
        "acu_open_connections": (
            "Near `network.max_connections`: clients do not reuse connections, or there are more of them than was "
            "meant."
        ),
        "acu_idle_connections_closed_total": (
            "It moves: `network.max_connections` is reached, and idle clients pay for it. Raise it, or have clients "
            "close."
        ),
        "acu_tls_certificate_end_seconds": (
            "`acu_tls_certificate_end_seconds - time()` is how long it is good for. Renew the files and send SIGHUP."
        ),
        "acu_unread_connections_cut_total": "It moves: clients stop reading, or the network loses them.",
    },
    "Requests": {
        "vllm:num_requests_running": "At `models.NAME.max_running` all the time: the engine is full.",
        "vllm:num_requests_waiting": (
            "It stays above 0: more work than the engine takes. Fewer clients, shorter prompts, or one more ACU."
        ),
        "acu_queued_tokens": "The same in tokens: what waits is long, or much.",
        "vllm:time_to_first_token_seconds": (
            "It grows with `vllm:request_queue_time_seconds`: overload. Without it: longer prompts, or prefixes that "
            "are not found."
        ),
        "vllm:request_time_per_output_token_seconds": (
            "It grows: more runs at a time than the card has speed for; lower `models.NAME.max_running`."
        ),
        "vllm:e2e_request_latency_seconds": "What a client waits for a whole answer.",
        "vllm:request_queue_time_seconds": "It grows: the engine is full; see `vllm:num_requests_waiting`.",
        "vllm:prompt_tokens_total": "The rate of reading.",
        "vllm:generation_tokens_total": "The rate of writing: what the card yields.",
        "acu_cached_prompt_tokens_total": (
            "Over `vllm:prompt_tokens_total`: the share that was not computed again. It falls: prompts begin "
            "differently, or the KV pool is short."
        ),
        "vllm:request_success_total": "Many of `length`: answers are cut off at their limit of tokens.",
        "acu_runs_aborted_total": "`client_gone`: clients give up, mostly for waiting.",
        "acu_runs_failed_total": (
            "It moves: an engine failed under them; `acu_engine_restarts_total` and the log say more."
        ),
        "acu_runs_rejected_total": (
            "`queue_full` and `deadline_exceeded`: more is asked than the engine gives; clients were told when to "
            "come again."
        ),
        "gen_ai_server_time_to_first_token_seconds": SAME_AS_VLLM,
        "gen_ai_server_time_per_output_token_seconds": SAME_AS_VLLM,
        "gen_ai_server_request_duration_seconds": (
            "The same, of refused and failed ones too; `error_type` is empty where all went well."
        ),
        "gen_ai_client_token_usage": (
            "How long prompts (`input`) and answers (`output`) are: what `models.NAME.max_model_len` must hold."
        ),
    },
    "Engines": {
        "acu_engine_ready": "0: it starts, or has failed and is started again; `acu status` tells the stage.",
        "acu_engine_uptime_seconds": "It falls to 0: it was started again.",
        "acu_engine_start_seconds": (
            "`loading` grows: the disk is slow, or the weights were not in memory; `acu models preload NAME` measures."
        ),
        "acu_engine_restarts_total": "It moves: the engine died or hung; the log has its last words.",
        "acu_engine_outstanding": (
            "Above what runs, with nothing coming: the engine is stuck; the supervisor starts it again."
        ),
        "vllm:kv_cache_usage_perc": (
            "Near 1 with preemptions: raise `gpu.kv_cache_size_mb`, or lower `models.NAME.max_running`."
        ),
        "vllm:prefix_cache_queries_total": "What the next is a share of.",
        "vllm:prefix_cache_hits_total": "Over the queries: how much the prefix cache saves.",
        "vllm:num_preemptions_total": "It moves: the KV pool is too small for what runs, and work is done twice.",
    },
    "Memory of the engines and the GPU": {
        "acu_kv_held_runs": "Agents' runs that wait, with their prompts kept so that they go on at once.",
        "acu_kv_held_tokens": "What that takes of the KV pool.",
        "acu_kv_running_and_held_perc": "Above 0.95 the longest idle lose theirs.",
        "acu_kv_watermark_passed_total": "It moves often: the KV pool is short for so many agents.",
        "acu_kv_released_runs_total": "Their next step computes its prompt again.",
        "acu_agent_idle_prefixes": "Prompts kept for idle runs, of all models.",
        "acu_prompt_limit_tokens": "It is there: GPU memory runs short, and longer prompts are refused for now.",
        "acu_gpu_memory_used_bytes": (
            "Against the plan: what is above it was not planned, or is another's; `nvidia-smi` names processes."
        ),
        "acu_gpu_memory_planned_bytes": "What `acu doctor --plan` shows.",
        "acu_gpu_memory_baseline_bytes": "Use after warm-up, which growth is counted from.",
        "acu_gpu_memory_capacity_bytes": "The card's size, as far as processes can have it.",
        "acu_gpu_memory_room_used_perc": "Towards 1: the card fills up, and steps are taken.",
        "acu_gpu_memory_growth_bytes_per_hour": (
            "Above 0 for hours: something leaks; the engine is started again before the card is full."
        ),
        "acu_gpu_memory_full_in_seconds": "It is there: at this trend the card is full then.",
        "acu_gpu_memory_step": (
            "What is done about it now; at `restart_engines` the model takes nothing until its engine is back."
        ),
        "acu_gpu_memory_steps_total": "How often each was needed.",
        "acu_gpu_memory_unreadable_total": "It moves: NVML fails; `nvidia-smi` and the kernel's log (Xid) say why.",
    },
    "Agents": {
        "acu_agent_runs_running": "Runs of agents that go on, waiting ones included.",
        "acu_agent_runs_total": (
            "By `end`: other ends than the usual ones grow with limits that are too narrow, or tools that fail."
        ),
        "acu_agent_steps_total": (
            "Over `acu_agent_runs_total`: steps a run. It grows: the agent goes round in circles."
        ),
        "acu_agent_prompt_tokens_total": AGENT_TOKENS,
        "acu_agent_cached_prompt_tokens_total": AGENT_TOKENS,
        "acu_agent_generation_tokens_total": AGENT_TOKENS,
        "acu_agent_route_total": "How much the small model takes off the large one.",
        "acu_agent_tool_calls_total": (
            "`error`, `refused` and `malformed` by tool: which of them fails, or is not understood by the model. Tool"
            " `unknown`: the model made it up."
        ),
        "acu_agent_tool_seconds": "What runs wait for while no engine works for them.",
    },
    "Traces": {
        "acu_spans_sent_total": "It stands still under load: no traces arrive.",
        "acu_spans_lost_total": (
            "It moves: the collector at `telemetry.otlp_endpoint` is down or slow. No request waits for it."
        ),
        "acu_spans_waiting": "It grows: the same, sooner.",
    },
    "Data: rows and memory": {
        "acu_data_open": "0 after the start: the log says why the data plane does not open.",
        "acu_data_rows": SIZE + " `fresh` grows and stays: the keeper is behind.",
        "acu_data_bytes": SIZE,
        "acu_data_database_bytes": SIZE,
        "acu_data_collections": "Collections that clients made.",
        "acu_data_shards": "Many small ones make searches slow; the keeper merges them.",
        "acu_data_memory_bytes": "At its cap rows go to the disk; see `data_plane.hot_layer_mem_mb`.",
        "acu_data_memory_cap_bytes": "The cap.",
        "acu_data_problems": "Above 0: files were damaged. `acu data verify` names them; look at the disk.",
        "acu_data_state_records": SIZE,
        "acu_data_events": SIZE,
        "acu_data_state_swept_total": "What its time limit took away.",
    },
    "Data: writing": {
        "acu_data_ring_rows": "It grows: more is written than the disk takes; whoever writes waits while it is full.",
        "acu_data_writes_total": "The rate of writing.",
        "acu_data_syncs_total": "Writes over syncs: how well writes share the disk's slowest work.",
        "acu_data_failed": "1: nothing is written any more, and reads go on. `acu data status` says why, and what to do.",
        "acu_data_trouble": "1: mostly a full disk. `acu data status` has the error; it goes on by itself.",
        "acu_data_text_backlog": "It grows: full-text searches miss what is new.",
    },
    "Data: searching": {
        "acu_data_searches_total": (
            "The share of `warm`: how many searches wait for the disk. More hot memory lowers it."
        ),
        "acu_data_hits_total": "The share of `warm`: whether what is asked for lies in memory.",
        "acu_data_search_seconds_total": "Over `acu_data_searches_total`: the mean time of one.",
        "acu_data_slow_searches_total": "It moves: the log has each with its collection and its time.",
        "acu_data_incomplete_searches_total": (
            "It moves: answers lack rows, for the disk was too slow for their deadline."
        ),
        "acu_data_warm_rows_read_total": "What searches cost the disk.",
    },
    "Data: keeping": {
        "acu_data_moved_rows_total": (
            "`demoted` and `promoted` both high: rows go to and fro; hot memory is too small for what is asked."
        ),
        "acu_data_graph_rebuilds_total": "They cost CPU; many come from many removed rows.",
        "acu_data_snapshots_total": "Each makes the next start shorter.",
        "acu_data_keeper_failures_total": "It moves: the log has the step and the error; it is tried again.",
        "acu_data_history_events": SIZE,
        "acu_data_history_bytes": SIZE,
        "acu_data_history_shards": SIZE,
        "acu_data_history_problems": "Above 0: `acu data status` names the file.",
        "acu_data_history_moved_total": "Old events that left the database.",
        "acu_data_history_removed_total": "What their time limit took away.",
    },
    "Data: archive": {
        "acu_data_archive_backlog_rows": (
            "It grows: the archive is not reached, or `data_plane.archive_every_s` is long. So much is lost with the "
            "disk."
        ),
        "acu_data_archive_backlog_bytes": "The same in bytes.",
        "acu_data_archive_runs_total": "It stands still: nothing is archived.",
        "acu_data_archive_failures_total": (
            "It moves: `acu data status` has the error (the bucket, the keys, the clock, the network)."
        ),
        "acu_data_archive_sent_bytes_total": "What the archive costs the line.",
        "acu_data_archive_damaged_files": (
            "Above 0: files here are damaged and are not archived: `acu data verify`, and restore from before."
        ),
        "acu_data_archive_time_seconds": "`time() - acu_data_archive_time_seconds` is how old the archive is.",
    },
}
