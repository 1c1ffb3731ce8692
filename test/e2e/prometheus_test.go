package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// prometheusConfig is what the operator would make of the ServiceMonitor in
// config/samples/prometheus.yaml, but that Debian's Prometheus cannot look for
// endpoints itself.
const prometheusConfig = `
global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}
rule_files: [rules.yaml]
scrape_configs:
- job_name: kubevirt
  scheme: https
  honor_labels: true
  authorization: {credentials_file: token}
  tls_config: {ca_file: ca.crt, server_name: ` + authority.MetricsName + `}
  static_configs: [{targets: [%s]}]
`

// prometheus is a real one, on this machine.
type prometheus struct{ url string }

func startPrometheus(t *testing.T, token string) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("%v: install Debian's prometheus (make e2e-long does)", err)
	}
	dir := t.TempDir()
	var cas strings.Builder
	for _, name := range []string{authority.HandlerCA, authority.APICA} {
		cas.WriteString(get[corev1.ConfigMap](t, "-n", "kubevirt", "configmap", name).Data[authority.BundleEntry])
	}
	targets, err := metricsTargets()
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(prometheusConfig, strings.Join(slices.Collect(maps.Values(targets)), ", "))
	for name, text := range map[string]string{"prometheus.yaml": config, "token": token, "ca.crt": cas.String(), "rules.yaml": sampleRules(t)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("== Prometheus\n%s", log.String())
		}
	})
	p := &prometheus{"http://" + address}
	if err := poll(func() error {
		_, _, err := p.query("up")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// sampleRules are those of the PrometheusRule that is shipped.
func sampleRules(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../config/samples/prometheus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var rule struct {
			Kind string `json:"kind"`
			Spec any    `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(document), &rule); err != nil {
			t.Fatal(err)
		}
		if rule.Kind == "PrometheusRule" {
			rules, err := yaml.Marshal(rule.Spec)
			if err != nil {
				t.Fatal(err)
			}
			return string(rules)
		}
	}
	t.Fatal("the sample has no PrometheusRule")
	return ""
}

// query returns how many series a query has, and the value of the first.
func (p *prometheus) query(query string) (series int, value float64, err error) {
	response, err := http.Get(p.url + "/api/v1/query?" + url.Values{"query": {query}}.Encode())
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, 0, err
	}
	if answer.Status != "success" {
		return 0, 0, fmt.Errorf("%s: %s", query, answer.Error)
	}
	if len(answer.Data.Result) > 0 {
		_, err = fmt.Sscan(fmt.Sprint(answer.Data.Result[0].Value[1]), &value)
	}
	return len(answer.Data.Result), value, err
}

// TestRealPrometheusScrapes: a real one scrapes what KubeVirt's Service has behind it, and has
// an answer to what KubeVirt's dashboards ask.
func TestRealPrometheusScrapes(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p := startPrometheus(t, readerAccount(t, ns))
	v := create(t, ns, tiny("measured"))
	v.await(v1.Running)
	shell := v.shell()
	for _, q := range []struct {
		query       string
		series      int
		least, most float64
	}{
		{`count(up{job="kubevirt"} == 1)`, 1, 3, 3},
		{`count(up{job="kubevirt"} == 0)`, 0, 0, 0},
		{`sum by (name, namespace) (rate(kubevirt_vmi_cpu_usage_seconds_total{namespace="NS"}[20s]))`, 1, 0.0001, 8},
		{`topk(5, sum by (name, namespace) (rate(kubevirt_vmi_network_receive_bytes_total{namespace="NS"}[20s])) + sum by (name, namespace) (rate(kubevirt_vmi_network_transmit_bytes_total{namespace="NS"}[20s])))`, 1, 10, 1e6},
		{`sum by (name, namespace) (rate(kubevirt_vmi_storage_read_traffic_bytes_total{namespace="NS"}[1m]))`, 1, 0, 1e9},
		{`kubevirt_vmi_memory_resident_bytes{namespace="NS",name="measured"}`, 1, 16 << 20, 1 << 30},
		{`kubevirt_vmi_info{namespace="NS"}`, 1, 1, 1},
		{`sum(kubevirt_vmi_phase_count{phase="running"})`, 1, 1, 100},
		{`histogram_quantile(0.95, sum by (le) (kubevirt_vmi_phase_transition_time_from_creation_seconds_bucket{phase="Running"}))`, 1, 0, 3600},
		{`sum(kubeqemu_vmi_stats_unanswered)`, 1, 0, 0},
	} {
		query := strings.ReplaceAll(q.query, "NS", ns)
		err := poll(func() error {
			if out, status := shell.run("ping -c 1 -s 1000 10.0.2.1"); status != 0 {
				return fmt.Errorf("ping from the guest: %q", out)
			}
			series, value, err := p.query(query)
			if err == nil && (series != q.series || series > 0 && !(value >= q.least && value <= q.most)) {
				err = fmt.Errorf("%s: %d series, of value %v; want %d, of %v to %v", query, series, value, q.series, q.least, q.most)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
