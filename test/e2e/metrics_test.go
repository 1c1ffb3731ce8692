package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// metricsTargets are the addresses of all that serve metrics, by component, as
// KubeVirt's Service has them.
func metricsTargets() (map[string]string, error) {
	slices, err := getObject[discoveryv1.EndpointSliceList]("-n", "kubevirt", "endpointslices", "-l", "kubernetes.io/service-name=kubevirt-prometheus-metrics")
	if err != nil {
		return nil, err
	}
	targets := map[string]string{}
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			if len(slice.Ports) != 1 || *slice.Ports[0].Name != "metrics" || e.TargetRef == nil || len(e.Addresses) == 0 {
				return nil, fmt.Errorf("the Service has ports %v, endpoint %v", slice.Ports, e)
			}
			for _, component := range []string{"virt-api", "virt-controller", "virt-handler"} {
				if strings.HasPrefix(e.TargetRef.Name, component+"-") {
					targets[component] = net.JoinHostPort(e.Addresses[0], fmt.Sprint(*slice.Ports[0].Port))
				}
			}
		}
	}
	return targets, nil
}

// scraper gets metrics with an account's token, or none.
type scraper struct {
	token  string
	client *http.Client
}

func newScraper(token string) (*scraper, error) {
	roots := x509.NewCertPool()
	for _, name := range []string{authority.HandlerCA, authority.APICA} {
		published, err := getObject[corev1.ConfigMap]("-n", "kubevirt", "configmap", name)
		if err != nil {
			return nil, err
		}
		if !roots.AppendCertsFromPEM([]byte(published.Data[authority.BundleEntry])) {
			return nil, fmt.Errorf("ConfigMap %s has no certificates", name)
		}
	}
	// One name for all of them, in certificates that are verified.
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: authority.MetricsName}}
	return &scraper{token, &http.Client{Transport: transport, Timeout: 15 * time.Second}}, nil
}

func (s *scraper) get(address string) (code int, text string, err error) {
	request, err := http.NewRequest(http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return 0, "", err
	}
	if s.token != "" {
		request.Header.Set("Authorization", "Bearer "+s.token)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// metrics are those of one component.
type metrics map[string]*dto.MetricFamily

func (s *scraper) scrape(component string) (metrics, error) {
	targets, err := metricsTargets()
	if err != nil {
		return nil, err
	}
	code, text, err := s.get(targets[component])
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d %s", code, text)
	}
	if err != nil {
		return nil, fmt.Errorf("scrape %s at %q: %w", component, targets[component], err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(strings.NewReader(text))
}

// value is that of the one series with these labels, given as name, value, …
func (m metrics) value(name string, labels ...string) (float64, error) {
	family := m[name]
	if family == nil {
		return 0, fmt.Errorf("there is no %s", name)
	}
	var found []*dto.Metric
	for _, series := range family.Metric {
		if hasLabels(series, labels) {
			found = append(found, series)
		}
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d series %s have the labels %v", len(found), name, labels)
	}
	s := found[0]
	return s.GetCounter().GetValue() + s.GetGauge().GetValue() + s.GetUntyped().GetValue() + float64(s.GetHistogram().GetSampleCount()), nil
}

func hasLabels(series *dto.Metric, labels []string) bool {
	has := map[string]string{}
	for _, l := range series.Label {
		has[l.GetName()] = l.GetValue()
	}
	for i := 0; i < len(labels); i += 2 {
		if has[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// account makes a service account and returns a token of it.
func account(t *testing.T, namespace, name string) string {
	t.Helper()
	kubectl(t, "-n", namespace, "create", "serviceaccount", name)
	return strings.TrimSpace(kubectl(t, "-n", namespace, "create", "token", name))
}

// readerAccount makes one that may read metrics, for the test's time.
func readerAccount(t *testing.T, namespace string) string {
	t.Helper()
	token := account(t, namespace, "prometheus")
	kubectl(t, "create", "clusterrolebinding", namespace+"-metrics", "--clusterrole=kubevirt-metrics-reader", "--serviceaccount="+namespace+":prometheus")
	t.Cleanup(func() {
		if _, err := output("", "kubectl", "delete", "clusterrolebinding", namespace+"-metrics"); err != nil {
			t.Error(err)
		}
	})
	return token
}

func mustScraper(t *testing.T, token string) *scraper {
	t.Helper()
	s, err := newScraper(token)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOnlyTheRightSeesMetrics: who may sees what a guest uses, and nobody else sees anything.
func TestOnlyTheRightSeesMetrics(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	v := create(t, ns, tiny("measured"))
	targets, err := metricsTargets()
	if err != nil || len(targets) != 3 {
		t.Fatalf("targets are %v, %v", targets, err)
	}
	reader := readerAccount(t, ns)
	for _, c := range []struct {
		token string
		want  int
	}{{"", 401}, {"forged", 401}, {account(t, ns, "nobody"), 403}, {reader, 200}} {
		s := mustScraper(t, c.token)
		for component, address := range targets {
			if code, text, err := s.get(address); err != nil || code != c.want || (code != 200 && strings.Contains(text, "kubevirt_")) {
				t.Errorf("%s answers %d, want %d: %v %.200s", component, code, c.want, err, text)
			}
		}
	}
	s := mustScraper(t, reader)
	v.await(v1.Running)
	of := []string{"namespace", ns, "name", "measured", "node", v.get().Status.NodeName}
	with := func(more ...string) []string { return append(append([]string{}, of...), more...) }
	const mib = 1 << 20
	holds := func(component string, bounds []bound) error {
		m, err := s.scrape(component)
		if err != nil {
			return err
		}
		var errs []error
		for _, b := range bounds {
			got, err := m.value(b.name, b.labels...)
			if err == nil && (got < b.least || got > b.most) {
				err = fmt.Errorf("%s%v is %v, want %v to %v", b.name, b.labels, got, b.least, b.most)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	shell := v.shell()
	if err := poll(func() error {
		return holds("virt-handler", []bound{
			{"kubevirt_vmi_memory_domain_bytes", of, 128 * mib, 128 * mib},
			{"kubevirt_vmi_memory_actual_balloon_bytes", of, 128 * mib, 128 * mib},
			{"kubevirt_vmi_memory_resident_bytes", of, 16 * mib, 1024 * mib},
			{"kubevirt_vmi_cpu_usage_seconds_total", of, 0.1, 1000},
			{"kubevirt_vmi_vcpu_seconds_total", with("id", "0", "state", "running"), 0.1, 1000},
			{"kubevirt_vmi_storage_read_traffic_bytes_total", with("drive", "root"), mib, 1024 * mib},
			{"kubevirt_vmi_storage_iops_read_total", with("drive", "root"), 10, 1e6},
			{"kubevirt_vmi_storage_read_times_seconds_total", with("drive", "root"), 1e-6, 1000},
		})
	}); err != nil {
		t.Error(err)
	}

	// The guest asks for its lease behind the shell.
	v.log().shows("tiny: eth0 ")
	// A launcher that does not answer in time is left out of a scrape.
	var before metrics
	if err := poll(func() (err error) {
		if before, err = s.scrape("virt-handler"); err == nil {
			_, err = before.value("kubevirt_vmi_network_transmit_bytes_total", with("interface", "default")...)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if out, status := shell.run("ping -c 5 -s 1000 10.0.2.1"); status != 0 {
		t.Errorf("ping from the guest: %q (%d)", out, status)
	}
	grown := func(name string, by float64) bound {
		old, err := before.value(name, with("interface", "default")...)
		if err != nil {
			t.Error(err)
		}
		return bound{name, with("interface", "default"), old + by, old + 100*by}
	}
	bounds := []bound{grown("kubevirt_vmi_network_transmit_bytes_total", 5000), grown("kubevirt_vmi_network_transmit_packets_total", 5),
		grown("kubevirt_vmi_network_receive_bytes_total", 5000), grown("kubevirt_vmi_network_receive_packets_total", 5)}
	if err := poll(func() error { return holds("virt-handler", bounds) }); err != nil {
		t.Error(err)
	}

	if err := poll(func() error {
		return holds("virt-controller", []bound{
			{"kubevirt_vmi_info", with("phase", "running", "vmi_pod", v.pod().Name, "guest_os_machine", v.get().Status.Machine.Type), 1, 1},
			{"kubevirt_vmi_status_addresses", with("address", v.get().Status.Interfaces[0].IP), 1, 1},
			{"kubevirt_vmi_phase_transition_time_from_creation_seconds", []string{"phase", "Running"}, 1, 1e6},
			{"kubevirt_virt_controller_leading_status", nil, 1, 1},
		})
	}); err != nil {
		t.Error(err)
	}
	v.delete()
	m, err := s.scrape("virt-handler")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.value("kubevirt_vmi_memory_domain_bytes", of...); err == nil {
		t.Error("a VMI that is gone has metrics")
	}
}

// bound is what a series must be.
type bound struct {
	name        string
	labels      []string
	least, most float64
}

// reportsMemory waits until the guest's balloon driver has told of its memory.
func (v vmi) reportsMemory(s *scraper) {
	v.t.Helper()
	err := poll(func() error {
		m, err := s.scrape("virt-handler")
		if err != nil {
			return err
		}
		var values []float64
		for _, name := range []string{"unused", "usable", "available", "domain"} {
			value, err := m.value("kubevirt_vmi_memory_"+name+"_bytes", "namespace", v.namespace, "name", v.name)
			if err != nil {
				return err
			}
			values = append(values, value)
		}
		if values[0] <= 0 || values[0] > values[1] || values[1] > values[2] || values[2] > values[3] {
			return fmt.Errorf("unused, usable, available memory, and the guest's, are %v", values)
		}
		return nil
	})
	if err != nil {
		v.t.Error(err)
	}
}
