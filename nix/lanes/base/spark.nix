# How an engine container is made on a DGX Spark.
{
  gpus = true;
  devices = [ "/dev/infiniband" ];
  capabilities = [ "IPC_LOCK" ];
  ulimits = { memlock = -1; stack = 67108864; };
  shmBytes = 68719476736;
  # Below everything but the kernel's own: the engine must not be the first victim of a full memory.
  oomScoreAdj = -500;
}
