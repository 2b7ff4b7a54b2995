# A launcher of launchers, as LLaMA-Factory's: one on each host, told by the environment.
exec "$1" -m torch.distributed.run --nnodes "$NNODES" --node-rank "$NODE_RANK" \
  --nproc-per-node "$NPROC_PER_NODE" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$2"
