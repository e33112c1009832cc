// The training operator's controllers and webhooks of MPIJobs and PyTorchJobs, in a manager of our own: the one that comes
// with them looks for webhook certificates in one fixed folder of the whole machine, keeps them in a Secret, and makes no
// more than 20 requests a second.
package main

import (
	"flag"
	"fmt"
	"os"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	controllers "github.com/kubeflow/training-operator/pkg/controller.v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/webhooks"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

var kinds = []string{kubeflow.MPIJobKind, kubeflow.PyTorchJobKind}

func main() {
	port := flag.Int("webhook-port", 9443, "port on loopback that the webhooks answer at")
	certificates := flag.String("webhook-certificates", "", "folder with tls.crt and tls.key")
	qps := flag.Float64("kube-api-qps", 20, "requests a second")
	burst := flag.Int("kube-api-burst", 30, "requests at once")
	flag.Parse() // --kubeconfig is controller-runtime's own
	if err := run(*port, *certificates, float32(*qps), *burst); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(port int, certificates string, qps float32, burst int) error {
	ctrl.SetLogger(zap.New())
	// Its own main takes these from flags; the images are never pulled.
	config.Config.MPIKubectlDeliveryImage = config.MPIKubectlDeliveryImageDefault
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault

	cluster, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	cluster.QPS, cluster.Burst = qps, burst
	if err := kubeflow.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(cluster, ctrl.Options{
		Scheme:        scheme.Scheme,
		Metrics:       server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: certificates}),
	})
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		if err := controllers.SupportedSchemeReconciler[kind](manager, common.GenNonGangSchedulerSetupFunc(), 1); err != nil {
			return err
		}
		if err := webhooks.SupportedSchemeWebhook[kind](manager); err != nil {
			return err
		}
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
