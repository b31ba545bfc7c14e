"""Variables of NCCL that no prediction depends on, and those that have no model.

Names are those of NCCL's sources (2.30, `src/`) and of its documentation (2.28, "Environment
Variables"), without `NCCL_`. What acts is in `environment.SETTINGS`.
"""

from __future__ import annotations

_IDLE = {
    "it says what NCCL prints, or writes": """
        DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS
        GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK NVTX_DISABLE PARAM_DUMP_ALL PROFILER_PLUGIN
        PROXY_DUMP_SIGNAL REPORT_CONNECT_PROGRESS RMA_PROXY_DUMP_SIGNAL SET_THREAD_NAME
        TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK WARN_ENABLE_DEBUG_INFO IB_WARN_RAIL_LOCAL
        """,
    "it says how ranks find each other, or when they give up": """
        COMM_ID CONF_FILE CONNECT_ROUND_MAX_PEERS ENABLE_VERSION_CHECK ENV_PLUGIN HOSTID
        IB_ADDR_FAMILY IB_ADDR_RANGE IB_ECE_ENABLE IB_GID_INDEX IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT
        IB_MQP_RETRY_SLEEP_MSEC IB_PKEY IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM
        IB_ROUTABLE_FLID_GID_INDEX IB_SUBNET_AWARE_ROUTING IB_SUBNET_PREFIX_LEN IB_TIMEOUT
        IB_QUERY_PORT_SPEED IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER
        IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY
        IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX
        IB_RESILIENCY_PORT_RECOVERY_START_DELAY IBVERBS_LIB IPC_USE_ABSTRACT_SOCKET
        OOB_NET_ENABLE OOB_NET_IFNAME RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR SOCKET_FAMILY
        SOCKET_MAGIC SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC
        UID_STAGGER_RATE UID_STAGGER_THRESHOLD
        """,
    "NICs are those of the machine": "IB_DEVICE_PCI_ORDER",
    "classes of traffic are not told apart": "IB_FIFO_TC IB_SL IB_TC GIN_IB_TC",
    "it says how memory is got, shared or registered": """
        CUMEM_HOST_ENABLE DISABLE_MEM_MANAGER DMABUF_ENABLE ELASTIC_BUFFER_REGISTER
        IB_DATA_DIRECT LEGACY_CUDA_REGISTER MULTI_SEGMENT_REGISTER NO_CACHE SET_CPU_STACK_SIZE
        SET_STACK_SIZE
        SHADOW_MEMPOOL_MAX_SIZE SINGLE_PROC_MEM_REG_ENABLE SYM_REUSE_SYSMEM_HANDLES
        WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES
        """,
    "NCCL no longer reads it": """
        CHECKS_DISABLE IB_CUDA_SUPPORT LL_THRESHOLD SINGLE_RING_THRESHOLD TREE_THRESHOLD
        """,
    "it says what NCCL checks, or overlooks": """
        CHECK_MODE CHECK_POINTERS IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P
        IGNORE_NET_MISMATCH LAUNCH_RACE_FATAL MULTI_RANK_GPU_ENABLE
        """,
    "the cost of a call is `call_cost`": """
        COMM_BLOCKING GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_STREAM_ORDERING
        GROUP_CUDA_STREAM LAUNCH_MODE LAUNCH_ORDER_IMPLICIT MEM_SYNC_DOMAIN PROXY_CPUSET
        """,
}

_NOT_MODELLED = {
    "it changes threads of LL128": "LL128_NTHREADS",
    "it changes channels of sends": """
        MIN_P2P_NCHANNELS MAX_P2P_NCHANNELS NCHANNELS_PER_NET_PEER P2P_PER_CHANNEL_NET_BW
        """,
    "without shared memory GPUs that cannot copy directly meet over the network": "SHM_DISABLE",
    "it says whether a GPU forwards for others": "NVB_DISABLE NVB_PRECONNECT",
    "0 leaves no NVLink domains of several nodes, and no symmetric kernels": "CUMEM_ENABLE",
    "0 leaves no symmetric kernels": "WIN_ENABLE",
    "GPUs of a node meet over its NICs where these are faster": "NET_DISABLE_INTRA",
    "it changes the NICs of sends": "P2P_PXN_LEVEL",
    "it changes the paths to NICs": """
        IB_PCI_RELAXED_ORDERING NET_GDR_C2C NET_GDR_MLOPART NET_GDR_READ PXN_C2C
        """,
    "NCCL_ALGO=^PAT leaves PAT out": "PAT_ENABLE",
    "import it, with `simreduce topo import`": "TOPO_FILE",
    "graphs are searched for": "GRAPH_FILE",
    "give the table of the example plugin as `tuner`": "TUNER_PLUGIN TUNER_CONFIG_FILE",
    "the class of the machine's NICs says what their network is": """
        IB_DISABLE NET NET_PLUGIN NET_PLUGIN_REF_COUNT
        """,
    "a NIC is what the machine says, and NCCL joins none": """
        IB_MERGE_NICS IB_MERGE_VFS MLOPART_RDMA_ENABLE NETDEVS_POLICY NET_FORCE_MERGE
        NET_MERGE_LEVEL NET_MERGE_POLICY TOPO_SPLIT_MLOPART
        """,
    "`equal_cost` of a fabric says how flows share its paths": """
        IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD IB_OOO_RQ IB_QPS_PER_CONNECTION IB_SPLIT_DATA_ON_QPS
        """,
    "the class of the NICs says what sockets reach": """
        NSOCKS_PERTHREAD SOCKET_INLINE SOCKET_MIN_TASKSIZE SOCKET_NTHREADS SOCKET_RCVBUF
        SOCKET_SNDBUF
        """,
    "it changes chunks, buffers or thresholds that have no setting here": """
        ALLOC_P2P_NET_LL_BUFFERS CHUNK_SIZE LL128_BUFFSIZE LL128_C2C LL_BUFFSIZE
        NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE P2P_LL_THRESHOLD P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE
        THREAD_THRESHOLDS UNPACK_DOUBLE_NCHANNELS
        """,
    "it changes what the network's proxies cost": """
        GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE
        GDR_FLUSH_DISABLE IB_PREPOST_RECEIVE_WORK_REQUESTS IB_USE_INLINE NET_FORCE_FLUSH
        NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NET_SHARED_BUFFERS NET_SHARED_COMMS
        PROGRESS_APPENDOP_FREQ PROXY_APPEND_BATCH_SIZE
        """,
    "it changes how GPUs of a node copy": """
        P2P_DIRECT_DISABLE P2P_READ_ENABLE P2P_USE_CUDA_MEMCPY SHM_LOCALITY SHM_USE_CUDA_MEMCPY
        """,
    "it changes sends": "P2P_EPOCH_ENABLE P2P_MAX_PEERS P2P_SCHEDULE_GROUP_SIZE",
    "domains of NVLink are those of the machine": """
        MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE MNNVL_ENABLE MNNVL_RAIL_PER_HOST
        MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID
        """,
    "it changes the memory of connections": """
        COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES RUNTIME_CONNECT
        """,
    "say `registered` or `symmetric`": """
        GRAPH_REGISTER LOCAL_REGISTER SYM_CE_THRESHOLD SYM_CTAS SYM_GIN_KERNELS_ENABLE SYM_KERNEL
        SYM_NOWIN_ENABLE SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE
        """,
    "it changes kernels": """
        ALLGATHERV_ENABLE CGA_CLUSTER_SIZE DEV_API_JIT L1_SHARED_MEMORY_CARVEOUT LSA_TEAM_SIZE
        NVLINK_UTIL_CENTRIC_SCHED_ENABLE
        """,
    "it is for CollNet, whose switches are those of the machine": "COLLNET_NODE_THRESHOLD",
    "it is for one-sided calls, which no collective here makes": """
        GDAKI_USE_RELIABLE_DB GIN_CONNECTION_RAIL GIN_ENABLE GIN_ERROR_QUERY_SEC
        GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER
        GIN_GDAKI_QP_DEPTH GIN_NCONNECTIONS GIN_PLUGIN GIN_PLUGIN_REF_COUNT GIN_PROXY_QUEUE_SIZE
        GIN_TYPE NUM_RMA_CTX RMA_DISABLE RMA_PLUGIN RMA_PLUGIN_REF_COUNT RMA_PROXY_QUEUE_SIZE
        """,
}


def _by_name(names: dict[str, str]) -> dict[str, str]:
    return {f"NCCL_{name}": why for why, text in names.items() for name in text.split()}


IDLE = _by_name(_IDLE)
"""Variables on which no prediction depends, and why."""

NOT_MODELLED = {name: f"not modelled: {why}" for name, why in _by_name(_NOT_MODELLED).items()}
"""Variables that change what NCCL does, and for which there is no model."""

RENAMED = {"NCCL_MIN_NRINGS": "NCCL_MIN_NCHANNELS", "NCCL_MAX_NRINGS": "NCCL_MAX_NCHANNELS"}
"""Old names that NCCL still reads where the new one is not set (src/graph/connect.cc)."""
