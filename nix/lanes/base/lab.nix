# What the lab's lanes share: the simulator with small budgets.
import ./over.nix {
  image = "lab-sim";
  model = { path = "sim/tiny"; servedName = "lab"; };
  executor = { kind = "mp"; port = 25000; };
  serve = { tensorParallelSize = 2; maxNumSeqs = 4; };
  container.shmBytes = 67108864;
  gates = import ./gates.nix { nodeSecs = 20; apiSecs = 20; tokenSecs = 20; };
  budgets = { startSecs = 60; confirmSecs = 30; stopSecs = 10; warmupSecs = 5; };
  watchdog = { canarySecs = 2; canaryTimeoutSecs = 3; canaryFailures = 2; peerGraceSecs = 10; };
}
