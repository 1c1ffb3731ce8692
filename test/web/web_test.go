// Package web looks at virt-api's page with headless Chromium, through `kubectl
// proxy`, on the cluster of KUBECONFIG:
//
//	KUBECONFIG=… go test ./...
//
// Screenshots are written to _output/web. It is a module of its own, so that the
// product needs nothing of a browser's.
package web

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	_ "image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
)

const path = "/apis/subresources.kubevirt.io/v1/ui/"

// spec is of the tiny guest, with a screen.
const spec = `
  domain:
    memory: {guest: %s}
    devices:
      disks: [{name: root, disk: {bus: virtio}}]
      interfaces: [{name: default, masquerade: {}}]
  networks: [{name: default, pod: {}}]
  volumes: [{name: root, containerDisk: {image: "localhost/kubeqemu/tiny-virtio-container-disk:dev"}}]
  terminationGracePeriodSeconds: 15
`

func machine(name, strategy, memory string) string {
	inner := strings.ReplaceAll(fmt.Sprintf(spec, memory), "\n", "\n    ")
	return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: %s}\nspec:\n  runStrategy: %s\n  template:\n    spec:%s\n---\n", name, strategy, inner)
}

func instance(name string) string {
	return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: %s}\nspec:%s---\n", name, fmt.Sprintf(spec, "128Mi"))
}

// newNamespace makes one that goes with the test.
func newNamespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("web-%05d", time.Now().UnixMicro()%100000)
	kubectl(t, "", "create", "namespace", name)
	t.Cleanup(func() {
		kubectl(t, "", "-n", name, "delete", "vm,vmi", "--all", "--timeout=90s")
		kubectl(t, "", "delete", "namespace", name, "--wait=false")
	})
	return name
}

// row is a script for a machine's row, or part of it.
func row(name, part string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".machine")].find((r) => r.querySelector(".name").innerText === %q)%s`, name, part)
}

func (b *browser) isIn(name, state string) {
	b.t.Helper()
	b.await(name+" is "+state, row(name, fmt.Sprintf(`?.querySelector(".state").innerText === %q`, state)))
}

// terminalText is what the serial console shows.
const terminalText = `[...document.querySelectorAll(".xterm-rows > div")].map((line) => line.innerText).join("\n")`

// TestPage goes through what the page is for, with a real guest.
func TestPage(t *testing.T) {
	if os.Getenv("KUBECONFIG") == "" {
		t.Fatal("KUBECONFIG names no cluster; `make web-test` brings one up")
	}
	ns := newNamespace(t)
	kubectl(t, machine("web", "Always", "128Mi")+machine("database", "Always", "128Mi")+machine("spare", "Halted", "1Gi")+instance("scratch"), "-n", ns, "apply", "-f", "-")
	address := proxy(t)
	b := newBrowser(t)
	b.open(address + strings.TrimSuffix(path, "/"))
	b.await("the way from the path without a slash", fmt.Sprintf("location.pathname === %q && document.querySelector('#link')?.innerText === 'live'", path))
	b.open(address + path + "#" + ns)
	b.isIn("spare", "Stopped")
	b.isIn("web", "Running")
	b.isIn("database", "Running")
	b.isIn("scratch", "Running")
	for _, part := range []struct {
		name string
		run  func(*browser, string)
	}{{"Console", (*browser).console}, {"Screen", (*browser).screen}, {"Keyboard", (*browser).keyboard}, {"Migration", (*browser).migration}, {"Refused", (*browser).refused}} {
		// Each begins where the last has left the page.
		if !t.Run(part.name, func(t *testing.T) { part.run(&browser{t, b.ctx}, ns) }) {
			t.FailNow()
		}
	}
	t.Run("Roles", func(t *testing.T) { roles(t, ns) })
	t.Run("Gone", func(t *testing.T) { (&browser{t, b.ctx}).gone(ns) })
	t.Run("Elsewhere", func(t *testing.T) { (&browser{t, b.ctx}).elsewhere(address, ns) })
}

// console types into the serial console, and leaves it by keyboard.
func (b *browser) console(string) {
	b.tabTo("Console web")
	b.press(kb.Enter)
	b.await("the terminal has the focus", `document.activeElement.classList.contains("xterm-helper-textarea")`)
	b.await("a prompt", fmt.Sprintf(`%s.includes("tiny# ")`, terminalText))
	b.press("echo $((6*7))-answer\r")
	b.await("the guest's answer", terminalText+`.includes("42-answer")`)
	b.press("printf '\\033[38;2;255;120;0mcolour\\033[0m\\n'; uname -a; free\r")
	b.await("more of the guest", terminalText+`.includes("Mem:")`)
	b.nameless()
	b.shootAll("console")
	b.leave()
	if now := b.focused(); now != "Close" {
		b.t.Fatalf("Ctrl+] leads to %q", now)
	}
	b.press(kb.Escape)
	b.await("it is closed, and focus is back", `!document.querySelector("dialog[open]") && document.activeElement.getAttribute("aria-label") === "Console web"`)
}

// migration begins a migration and cancels it. The cluster has one node, so that no node takes the guest.
func (b *browser) migration(ns string) {
	b.tabTo("Migrate web")
	b.press(kb.Enter)
	b.await("the guest is about to move", row("web", `?.querySelector(".filling").innerText.includes("Moves from node-1 to another node")`))
	b.nameless()
	b.shootAll("migration")
	b.tabTo("Cancel migration web")
	b.press(kb.Enter)
	b.await("the guest stays", row("web", `?.querySelector(".filling").hidden && document.activeElement.getAttribute("aria-label") === "Migrate web"`))
	kubectl(b.t, "", "-n", ns, "wait", "vmi/web", "--for=jsonpath={.status.migrationState.abortStatus}=Succeeded", "--timeout=60s")
}

// screen sees what the guest's graphics device shows.
func (b *browser) screen(string) {
	b.tabTo("Screen web")
	b.press(kb.Enter)
	const canvas = `document.querySelector("#guest-surface canvas")`
	b.await("a frame", canvas+`?.width >= 640 && new Set(new Uint32Array(`+canvas+`.getContext("2d").getImageData(0, 0, `+canvas+`.width, `+canvas+`.height).data.buffer)).size > 1`)
	data := eval[string](b, canvas+`.toDataURL("image/png")`)
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(data, "data:image/png;base64,"))
	if err != nil {
		b.t.Fatal(err)
	}
	frame, _, err := image.Decode(bytes.NewReader(raw))
	if err != nil {
		b.t.Fatal(err)
	}
	if drawn := lit(frame); drawn < 200 {
		b.t.Errorf("the screen, of %v, has %d pixels that are not dark", frame.Bounds(), drawn)
	}
	b.nameless()
	b.shootAll("screen")
	b.leave()
	b.press(kb.Escape)
	b.await("it is closed", `!document.querySelector("dialog[open]")`)
}

// lit counts pixels that are not dark.
func lit(frame image.Image) int {
	n := 0
	for y := frame.Bounds().Min.Y; y < frame.Bounds().Max.Y; y++ {
		for x := frame.Bounds().Min.X; x < frame.Bounds().Max.X; x++ {
			if r, g, b, _ := frame.At(x, y).RGBA(); r+g+b > 3*0x6000 {
				n++
			}
		}
	}
	return n
}

// keyboard stops and starts, pauses and unpauses, by keys only; an open console comes back
// with the guest.
func (b *browser) keyboard(ns string) {
	b.nameless()
	b.tabTo("Pause database")
	b.press(kb.Enter)
	b.isIn("database", "Paused")
	if now := b.focused(); now != "Unpause database" {
		b.t.Errorf("after a pause the focus is on %q", now)
	}
	b.shootAll("list")
	eval[*string](b, `document.activeElement.blur()`)
	b.shoot("page", 1120, 470, "light") // for the README
	b.tabTo("Unpause database")
	b.press(kb.Enter)
	b.isIn("database", "Running")
	b.tabTo("Stop web")
	b.press(kb.Enter)
	b.shootAll("confirm")
	if now := b.focused(); now != "Cancel" {
		b.t.Errorf("to be asked first leads to %q", now)
	}
	b.press(kb.Escape)
	b.await("nothing was done", `!document.querySelector("dialog[open]")`)
	b.press(kb.Enter)
	b.tabTo("Stop")
	b.press(kb.Enter)
	b.isIn("web", "Stopped")
	if now := b.focused(); now != "Start web" {
		b.t.Errorf("after a stop the focus is on %q", now)
	}
	b.press(kb.Enter)
	b.isIn("web", "Running")
	b.tabTo("Console web")
	b.press(kb.Enter)
	b.await("the console", `document.querySelector("#guest-link").innerText === "Connected."`)
	kubectl(b.t, "{}", "replace", "--raw", "/apis/subresources.kubevirt.io/v1/namespaces/"+ns+"/virtualmachines/web/restart", "-f", "-")
	b.await("the console waits", `document.querySelector("#guest-link").innerText.startsWith("The guest does not run")`)
	b.await("the console is back", `document.querySelector("#guest-link").innerText === "Connected."`)
	b.leave()
	b.press(kb.Escape)
	b.press("/")
	b.press("spa")
	b.await("one is left", `document.querySelectorAll(".machine").length === 1`)
	eval[bool](b, `(document.querySelector("#filter").value = "", document.querySelector("#filter").dispatchEvent(new Event("input")))`)
}

// refused shows what the API server says, where it was asked.
func (b *browser) refused(ns string) {
	kubectl(b.t, "", "-n", ns, "patch", "vm", "spare", "--type=merge", "--patch", `{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/os":"none"}}}}}`)
	b.tabTo("Start spare")
	b.press(kb.Enter)
	b.isIn("spare", "ErrorUnschedulable")
	b.shoot("trouble", 1280, 800, "light")
	b.tabTo("Stop spare")
	b.press(kb.Enter)
	b.tabTo("Stop")
	b.press(kb.Enter)
	b.isIn("spare", "Stopped")
}

// roles: who may look at one namespace sees its machines, and is told why nothing else
// goes.
func roles(t *testing.T, ns string) {
	kubectl(t, "", "-n", ns, "create", "rolebinding", "view", "--clusterrole=view", "--user=viewer-"+ns)
	address := proxy(t, "--as=viewer-"+ns, "--as-group=system:authenticated")
	b := newBrowser(t)
	b.open(address + path)
	b.await("refusal of all namespaces", `/cannot list/.test(document.querySelector("#problem").innerText)`)
	b.open(address + path + "#" + ns)
	b.isIn("web", "Running")
	b.tabTo("Pause web")
	b.press(kb.Enter)
	b.await("why not", row("web", `.querySelector(".refusal").innerText.includes("cannot update")`))
	b.shoot("refused", 1280, 800, "light")
	b.tabTo("Console web")
	b.press(kb.Enter)
	b.await("why there is no console", `/cannot get/.test(document.querySelector("#guest-link").innerText)`)
	b.shoot("refused-console", 1280, 800, "dark")
}

// gone: what is deleted goes from the list, and from the console that shows it; what is
// read anew stays meanwhile.
func (b *browser) gone(ns string) {
	b.t.Helper()
	const rows = `document.querySelectorAll(".machine").length`
	if left := eval[int](b, `document.dispatchEvent(new Event("visibilitychange")), new Promise((done) => requestAnimationFrame(() => done(`+rows+`)))`); left != 4 {
		b.t.Errorf("read anew, and %d rows are left", left)
	}
	b.tabTo("Console scratch")
	b.press(kb.Enter)
	b.await("the console", `document.querySelector("#guest-link").innerText === "Connected."`)
	kubectl(b.t, "", "-n", ns, "delete", "vmi", "scratch", "--wait=false")
	b.await("the console says so", `document.querySelector("#guest-link").innerText === "The machine is gone."`)
	b.leave()
	b.press(kb.Escape)
	b.await("it is closed, and the row is gone", `!document.querySelector("dialog[open]") && `+rows+` === 3`)
}

// elsewhere: a page of another site, in the browser of who has ours open and so with its
// cookie at hand, reaches no guest through the same kubectl proxy.
func (b *browser) elsewhere(address, ns string) {
	b.t.Helper()
	of := address + "/apis/subresources.kubevirt.io/v1/namespaces/" + ns + "/virtualmachineinstances/web/"
	attach := fmt.Sprintf(`new Promise((done) => {
		const socket = new WebSocket(%q, "plain.kubevirt.io");
		socket.onopen = () => { socket.close(); done("open"); };
		socket.onerror = () => done("refused");
	})`, "ws"+strings.TrimPrefix(of, "http")+"console")
	pause := fmt.Sprintf(`fetch(%q, { method: "PUT", headers: { "Content-Type": "application/json" }, body: "{}" }).then((r) => String(r.status), () => "refused")`, of+"pause")
	if got := eval[string](b, attach); got != "open" {
		b.t.Fatalf("a console from the page itself: %s", got)
	}
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><title>another site</title>")
	}))
	defer evil.Close()
	// To a browser, another name is another site.
	b.open(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1))
	for what, script := range map[string]string{"a console": attach, "pause": pause} {
		if got := eval[string](b, script); got != "refused" {
			b.t.Errorf("%s from another site's page: %s", what, got)
		}
	}
	if out := kubectl(b.t, "", "-n", ns, "get", "vmi", "web", "-o", "jsonpath={.status.conditions[?(@.type=='Paused')].status}"); out == "True" {
		b.t.Error("another site's page has paused the guest")
	}
}
