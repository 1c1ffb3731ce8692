package e2e

import (
	"bytes"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// fetched is what a GET through the API server answers.
func fetched(t *testing.T, user, path string) (int, string, []byte) {
	t.Helper()
	config := configOf(t, user)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Get(strings.TrimSuffix(config.Host, "/") + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header.Get("Content-Type"), body
}

// pictured takes screenshots: the guest's words are on it.
func (m vm) pictured() {
	m.t.Helper()
	for _, query := range []string{"", "?moveCursor=true"} {
		code, kind, body := fetched(m.t, "", m.path("virtualmachineinstances", "vnc/screenshot")+query)
		picture, err := png.Decode(bytes.NewReader(body))
		if code != http.StatusOK || kind != "image/png" || err != nil {
			m.t.Fatalf("screenshot%s: %d %s %.200q: %v", query, code, kind, body, err)
		}
		seen := map[any]bool{}
		for x := range picture.Bounds().Dx() {
			for y := range picture.Bounds().Dy() {
				seen[picture.At(x, y)] = true
			}
		}
		if size := picture.Bounds().Size(); size.X < 640 || size.Y < 400 || len(seen) < 2 {
			m.t.Errorf("screenshot%s has %v and %d colours", query, size, len(seen))
		}
	}
}

// throughProxy has a word with the guest by the serial console, as a program does
// that knows nothing but kubectl proxy.
func (m vm) throughProxy() {
	m.t.Helper()
	proxy := startTranscript(m.t, "kubectl proxy", "kubectl", "proxy", "--port=0")
	address := proxy.expect(`Starting to serve on (\S+)`)[1]
	dialer := websocket.Dialer{Subprotocols: []string{"plain.kubevirt.io"}, HandshakeTimeout: 30 * time.Second}
	conn, _, err := dialer.DialContext(m.t.Context(), "ws://"+address+m.path("virtualmachineinstances", "console"), nil)
	if err != nil {
		m.t.Errorf("a console through kubectl proxy: %v", err)
		return
	}
	shell := transcribe(m.t, "console through kubectl proxy", conn).prompt()
	if out, _ := shell.run("echo $((6 * 7))"); out != "42\n" {
		m.t.Errorf("the console through kubectl proxy answers %q", out)
	}
}

// TestConsoleOutages: what is said on a console gets lost neither when certificates
// are replaced nor when nobody listens, and who redials is back at once.
func TestConsoleOutages(t *testing.T) {
	m := createVM(t, namespace(t), "guest", v1.RunStrategyAlways)
	m.runs("")
	m.attach("virtualmachineinstances", "console").prompt()
	t.Run("certificates", m.rotates)
	t.Run("virt-handler", m.redials)
	t.Run("reader", m.unread)
}

// messages are a hundred a second, which the guest echoes line by line.
const (
	messages        = 3000
	messageInterval = 10 * time.Millisecond
)

// message is what the guest sends back, among what it says by itself.
var message = regexp.MustCompile(`\b\d{5}\b`)

// rotates replaces virt-api's CA and certificates while messages flow.
func (m vm) rotates(t *testing.T) {
	m.t = t
	shell := m.attach("virtualmachineinstances", "console").prompt()
	shell.send("stty -echo; echo ma\"\"rk; cat\n")
	shell.expect(`mark\r?\n`)
	begun := len(shell.all())
	published := func() string {
		return get[corev1.ConfigMap](t, "-n", "kubevirt", "configmap", authority.APICA).Data[authority.BundleEntry]
	}
	before := published()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		tick := time.NewTicker(messageInterval)
		defer tick.Stop()
		for n := range messages {
			<-tick.C
			if _, err := fmt.Fprintf(shell.input, "%05d\n", n); err != nil {
				t.Errorf("message %d: %v", n, err)
				return
			}
		}
	}()
	time.Sleep(2 * time.Second)
	kubectl(t, "-n", "kubevirt", "patch", "secret", "virt-api-ca", "--type=json", "--patch", `[{"op": "remove", "path": "/data"}]`)
	if err := poll(func() error {
		if now := published(); now == before {
			return fmt.Errorf("virt-api has published no other CA than\n%s", now)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	<-sent
	if err := poll(func() error {
		got := message.FindAllString(shell.all()[begun:], -1)
		for n := range messages {
			if n >= len(got) {
				return fmt.Errorf("%d of %d messages came back", len(got), messages)
			}
			if want := fmt.Sprintf("%05d", n); got[n] != want {
				return fmt.Errorf("message %d came back as %q", n, got[n])
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	shell.send("\x03")
	shell.send("stty sane\n")
	// And who comes now is let in by what is new.
	if err := poll(func() error {
		conn, _, err := dial(t, "", m.path("virtualmachineinstances", "console"))
		if err == nil {
			conn.Close()
		}
		return err
	}); err != nil {
		t.Errorf("a console after the change: %v", err)
	}
}

// redials comes back as soon as a virt-handler is there again.
func (m vm) redials(t *testing.T) {
	m.t = t
	shell := m.attach("virtualmachineinstances", "console").prompt()
	killHandler(t)
	ready := time.Now()
	select {
	case <-shell.ended:
	case <-time.After(patience):
		t.Error("the console is there, the virt-handler is not")
	}
	if err := poll(func() error {
		conn, _, err := dial(t, "", m.path("virtualmachineinstances", "console"))
		if err != nil {
			return err
		}
		again := transcribe(t, "console of a new virt-handler", conn)
		again.send("echo $((6 * 7))-\n")
		again.shows("42-")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	took := time.Since(ready)
	t.Logf("the console was back %s after virt-handler was", took)
	if took > 5*time.Second {
		t.Errorf("the console was back %s after virt-handler was", took)
	}
}

// unread has a console that nobody reads for a minute, while the guest writes more
// than all buffers hold, and boots as fast as ever.
func (m vm) unread(t *testing.T) {
	m.t = t
	flood := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", 2<<20)
	log := m.log()
	boots := func() time.Duration {
		t.Helper()
		ups := strings.Count(log.all(), "tiny: up")
		begin := time.Now()
		m.asked(http.StatusOK, "", "", "virtualmachineinstances", "reset", nil)
		if err := poll(func() error {
			if now := strings.Count(log.all(), "tiny: up"); now == ups {
				return fmt.Errorf("the guest is not up again: it was %d times", now)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	log.shows("tiny: up")
	alone := min(boots(), boots())
	m.attach("virtualmachineinstances", "console").prompt()
	conn, _, err := dial(t, "", m.path("virtualmachineinstances", "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begin := time.Now()
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte(flood+"; echo; sleep 5; echo flo\"\"oded\n")); err != nil {
		t.Fatal(err)
	}
	// The pod's log is cut amid a flood, and lets through what comes seconds later.
	log.shows("flooded")
	beside := boots()
	time.Sleep(time.Until(begin.Add(time.Minute)))
	t.Logf("the guest boots in %s, and beside a console that is not read in %s", alone, beside)
	if beside > alone*3/2+2*time.Second {
		t.Errorf("the guest boots in %s, and beside a console that is not read in %s", alone, beside)
	}
	// The console is still one: after what was held for it comes what the guest says now.
	shell := transcribe(t, "console that was not read", conn)
	shell.send("\n")
	if err := poll(func() error {
		shell.send("echo $((6 * 7))-\n")
		if !strings.Contains(shell.all(), "42-") {
			return fmt.Errorf("it ends with %q", last(shell.all(), 200))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	got := strings.Count(shell.all(), "x")
	t.Logf("%d bytes of a flood of %d were held for who did not read", got, 2<<20)
	if got == 0 {
		t.Error("nothing was held")
	}
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

// TestExpandShowsVMWithItsInstancetype: a VM is shown with its instancetype in it, by its name and as a
// manifest, and can be run as it is shown.
func TestExpandShowsVMWithItsInstancetype(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, `{"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineInstancetype", "metadata": {"name": "small"},
		"spec": {"cpu": {"guest": 2}, "memory": {"guest": "96Mi"}}}`)
	machine := &v1.VirtualMachine{}
	if err := json.Unmarshal([]byte(manifestOf(t, "sized", v1.RunStrategyHalted, func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Memory = nil })), machine); err != nil {
		t.Fatal(err)
	}
	machine.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", Kind: "VirtualMachineInstancetype"}
	text, err := json.Marshal(machine)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what, answer string) {
		t.Helper()
		var vm v1.VirtualMachine
		if err := json.Unmarshal([]byte(answer), &vm); err != nil {
			t.Fatal(err)
		}
		d := vm.Spec.Template.Spec.Domain
		if vm.Spec.Instancetype != nil || d.CPU == nil || d.CPU.Sockets*max(d.CPU.Cores, 1) != 2 || d.Memory == nil || d.Memory.Guest.String() != "96Mi" {
			t.Errorf("%s: %s", what, answer)
		}
		if _, err := output(answer, "kubectl", "-n", ns, "apply", "--dry-run=server", "--server-side", "--field-manager=e2e", "--force-conflicts", "-f", "-"); err != nil && what == "as a manifest" {
			t.Errorf("%s it is refused: %v", what, err)
		}
	}
	path := subresources + "/namespaces/" + ns
	given, err := output(string(text), "kubectl", "replace", "--raw", path+"/expand-vm-spec", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	check("as a manifest", given)
	apply(t, ns, string(text))
	check("by its name", kubectl(t, "get", "--raw", path+"/virtualmachines/sized/expand-spec"))
}

// raw is a console of which nothing is kept but what is asked for.
type raw struct {
	t    *testing.T
	conn *websocket.Conn
	rest []byte
}

func (m vm) raw() *raw {
	m.t.Helper()
	conn, _, err := dial(m.t, "", m.path("virtualmachineinstances", "console"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { conn.Close() })
	return &raw{t: m.t, conn: conn}
}

func (r *raw) send(text []byte) {
	r.t.Helper()
	for len(text) > 0 {
		n := min(len(text), 10<<10)
		if err := r.conn.WriteMessage(websocket.BinaryMessage, text[:n]); err != nil {
			r.t.Fatal(err)
		}
		text = text[n:]
	}
}

// silence is how long a guest may write nothing. It takes a MiB in, byte by byte through an emulated serial port, in a minute and a half
// where another test cluster shares the machine.
const silence = 10 * time.Minute

// more reads until enough of what was read says so, and returns that.
func (r *raw) more(what string, enough func(all []byte) (length int)) []byte {
	r.t.Helper()
	for {
		if n := enough(r.rest); n > 0 {
			got := r.rest[:n]
			r.rest = r.rest[n:]
			return got
		}
		if err := r.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
			r.t.Fatal(err)
		}
		_, message, err := r.conn.ReadMessage()
		if err != nil {
			r.t.Fatalf("%s: %v after %d bytes, the last of them %q", what, err, len(r.rest), last(string(r.rest), 100))
		}
		r.rest = append(r.rest, message...)
	}
}

// until reads up to a mark, and with it.
func (r *raw) until(mark string) {
	r.t.Helper()
	from := 0 // what was looked at
	r.more(mark, func(all []byte) int {
		i := bytes.Index(all[from:], []byte(mark))
		if i < 0 {
			from = max(0, len(all)-len(mark))
			return 0
		}
		return from + i + len(mark)
	})
}

// TestConsoleBulk: what is pasted into a console arrives whole, and so does what
// comes out; consoles that are opened and dropped leave nothing behind.
func TestConsoleBulk(t *testing.T) {
	const size = 10 << 20
	m := createVM(t, namespace(t), "bulk", v1.RunStrategyAlways)
	m.runs("")
	m.log().shows("tiny: eth0") // the guest says so in the midst of what it sends, on a busy machine
	for range 20 {
		conn, _, err := dial(t, "", m.path("virtualmachineinstances", "console"))
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	m.attach("virtualmachineinstances", "console").prompt()
	lines := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	want := md5.Sum(lines)
	console := m.raw()
	// A terminal that is raw passes on all bytes as they are. The marks are typed in
	// two parts, lest their echo be taken for them.
	taking := fmt.Sprintf(`for i in $(seq %d); do dd bs=1M count=1 iflag=fullblock 2>/dev/null; echo ta""ken >&2; done`, size>>20)
	begin := time.Now()
	console.send(fmt.Appendf(nil, "stty raw -echo; echo out\"\"going; yes 0123456789abcde | head -c %d; echo pas\"\"ted; head -c %d | %s | md5sum; stty sane\n", size, size, taking))
	console.until("outgoing\n")
	out := console.more("what comes out", func(all []byte) int { return len(all) / size * size })
	for i := range out {
		if out[i] != lines[i] {
			t.Errorf("what came out differs from byte %d on: %q, want %q", i, out[max(0, i-40):min(size, i+200)], lines[max(0, i-40):min(size, i+40)])
			break
		}
	}
	t.Logf("%d bytes out in %s", size, time.Since(begin))
	console.until("pasted\n")
	begin = time.Now()
	console.send(lines)
	for range size >> 20 {
		console.until("taken\n")
	}
	sum := console.more("the guest's sum", func(all []byte) int { return len(all) / md5line * md5line })
	if got := string(sum[:2*md5.Size]); got != fmt.Sprintf("%x", want) {
		t.Errorf("what was pasted arrived with the sum %s, want %x", got, want)
	}
	t.Logf("%d bytes in in %s", size, time.Since(begin))
}

// md5line is what md5sum prints of its input, with an end of line.
const md5line = 2*md5.Size + len("  -\n")
