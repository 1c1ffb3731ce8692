package series

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

func TestDataVolumes(t *testing.T) {
	of := func(name string, status cdi.DataVolumeStatus) cdi.DataVolume {
		return cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Status: status}
	}
	volumes := []cdi.DataVolume{
		of("new", cdi.DataVolumeStatus{}),
		of("waits", cdi.DataVolumeStatus{Phase: cdi.WaitForFirstConsumer, Progress: cdi.ProgressUnknown}),
		of("comes", cdi.DataVolumeStatus{Phase: cdi.ImportInProgress, Progress: "42.50%", RestartCount: 3}),
		of("there", cdi.DataVolumeStatus{Phase: cdi.Succeeded, Progress: cdi.ProgressDone}),
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&DataVolumes{Log: logr.Discard(), List: func(context.Context) ([]cdi.DataVolume, error) { return volumes, nil }})
	scraped(t, "datavolumes.golden", registry)

	registry = prometheus.NewPedanticRegistry()
	registry.MustRegister(&DataVolumes{Log: logr.Discard(), List: func(context.Context) ([]cdi.DataVolume, error) { return volumes, errors.New("no cache") }})
	if got := exposition(t, registry); got != "" {
		t.Errorf("without a list there are series:\n%s", got)
	}
}
