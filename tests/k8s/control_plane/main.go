// One program for all parts of a Kubernetes control plane and node: the name it is started by says
// which. One link instead of six, which is most of the time that building them takes.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	}
	return nil
}

func main() {
	name := filepath.Base(os.Args[0])
	part := command(name)
	if part == nil {
		fmt.Fprintf(os.Stderr, "%s is no part of Kubernetes that this program has\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(part))
}
