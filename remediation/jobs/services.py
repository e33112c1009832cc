"""Workloads that are moved by eviction: their controllers bring back what is gone, one pod or one group at a time."""

from remediation.jobs.evicting import Evicting

#: leaderworkerset.x-k8s.io (pod_controller.go): RecreateGroupOnPodRestart.
LEADER_WORKER_SET = Evicting(
    "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "any pod that goes takes its group along, which is made anew"
)
STATEFUL_SET = Evicting("apps/v1", "StatefulSet", "a pod that goes is made anew under its name")
#: A Deployment surges when its template changes, never for an eviction: what keeps it up is its disruption budget.
DEPLOYMENT = Evicting("apps/v1", "Deployment", "its budget says how many may go at once, and each is made anew at once")
REPLICA_SET = Evicting("apps/v1", "ReplicaSet", "each pod that goes is made anew at once")
