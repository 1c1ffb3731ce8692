package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// part is a script for a part of the line of the image that the VM waits for.
func part(name string) string {
	return fmt.Sprintf(`document.querySelector("#machines .image %s")`, name)
}

// longest is after what time the API server ends requests to virt-api that are no websockets.
const longest = time.Minute

// TestUploadByTheButton uploads the image of a VM by the button, for longer than any request to virt-api may take. The namespace has storage, and
// a VM "sent" that waits for its disk "sent-root"; the file KUBEQEMU_UPLOAD_IMAGE is the image.
func TestUploadByTheButton(t *testing.T) {
	ns, image := os.Getenv("KUBEQEMU_UPLOAD_NAMESPACE"), os.Getenv("KUBEQEMU_UPLOAD_IMAGE")
	if ns == "" || image == "" {
		t.Skip("KUBEQEMU_UPLOAD_NAMESPACE and KUBEQEMU_UPLOAD_IMAGE name no VM that waits for an image: TestWeb makes one")
	}
	kubectl(t, "", "-n", ns, "create", "rolebinding", "page-edit", "--clusterrole=edit", "--user=editor-"+ns)
	kubectl(t, "", "-n", ns, "create", "rolebinding", "page-view", "--clusterrole=view", "--user=viewer-"+ns)
	large := filepath.Join(t.TempDir(), "large.raw")
	if err := os.WriteFile(large, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 8<<30); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.raw")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t)
	page := func(user string) string {
		address := proxy(t, "--as="+user+"-"+ns, "--as-group=system:authenticated")
		b.open(address + path + "#" + ns)
		b.await("the button", part(".pick")+`?.checkVisibility() === true`)
		return address
	}
	page("viewer")
	b.choose(image)
	b.await("why not", `/cannot get .*datavolumes\/upload/.test(`+part(".error")+`.innerText)`)
	b.shoot("upload-refused", 1280, 800, "light")
	address := page("editor")
	b.nameless()
	b.shootAll("upload-waits")
	b.choose(empty)
	b.await("an empty file is refused", part(".error")+`.innerText === "The file is empty."`)
	b.otherSite(address, ns)
	page("editor")
	b.choose(large)
	b.await("the importer's refusal", `/the importer refuses the image: .*8/.test(`+part(".error")+`.innerText) && `+part(".pick")+`.checkVisibility()`)
	b.shoot("upload-too-large", 1280, 800, "light")
	b.begins(image, 100*time.Millisecond)
	eval[bool](b, part(".cancel")+`.click() ?? true`)
	b.await("it is cancelled", part(".pick")+`.checkVisibility() && !`+part("progress")+`.checkVisibility() && !`+part(".error")+`.innerText`)

	info, err := os.Stat(image)
	if err != nil {
		t.Fatal(err)
	}
	pieces := time.Duration(info.Size()/(256<<10) + 1)
	began := time.Now()
	b.begins(image, (longest+15*time.Second)/pieces)
	b.await("some of it", part("progress")+`.value >= 20`)
	b.nameless()
	b.shootAll("upload")
	for last := 0; ; {
		now := eval[int](b, `(() => { const bar = `+part("progress")+`; return bar?.checkVisibility() ? bar.value : -1; })()`)
		if now < 0 {
			break
		}
		if now < last {
			t.Errorf("%d%% after %d%%", now, last)
		}
		if last = now; time.Since(began) > patience {
			t.Fatalf("it is at %d%% after %s", now, patience)
		}
		time.Sleep(500 * time.Millisecond)
	}
	took := time.Since(began)
	t.Logf("%d bytes in %s", info.Size(), took.Round(time.Second))
	if took < longest {
		t.Errorf("the upload took %s, want more than %s", took, longest)
	}
	if text := eval[string](b, `document.querySelector("#machines .images").innerText`); strings.Contains(text, "broke") {
		t.Errorf("the page says %q", text)
	}
	b.isIn("sent", "Running")
	b.await("no line is left", `!document.querySelector("#machines .image")`)
}

// choose gives a file to the button, as its dialog does.
func (b *browser) choose(file string) {
	b.t.Helper()
	do(b, chromedp.SetUploadFiles("#machines .image input[type=file]", []string{file}, chromedp.NodeReady))
	// By then the page no longer shows the text of an earlier upload.
	eval[bool](b, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// begins begins to upload a file, with a pause before each piece, once the importer is ready for it.
func (b *browser) begins(file string, pause time.Duration) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`(() => {
		window.read ??= Blob.prototype.arrayBuffer;
		Blob.prototype.arrayBuffer = async function () { await new Promise((go) => setTimeout(go, %d)); return window.read.call(this); };
		return true;
	})()`, pause.Milliseconds()))
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Second) {
		b.choose(file)
		b.await("it begins, or is refused", `(`+part(".error")+`.innerText || `+part("progress")+`.value > 0) && true`)
		why := eval[string](b, part(".error")+`.innerText`)
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("it does not begin: %s", why)
		}
	}
}

// otherSite: a page of another site uploads nothing, in the browser of who has ours open.
func (b *browser) otherSite(address, ns string) {
	b.t.Helper()
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>another site</title>"))
	}))
	defer evil.Close()
	// To a browser, another name is another site.
	b.open(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1))
	got := eval[string](b, fmt.Sprintf(`new Promise((done) => {
		const socket = new WebSocket(%q, "upload.kubeqemu.io");
		socket.onopen = () => { socket.close(); done("open"); };
		socket.onerror = () => done("refused");
	})`, "ws"+strings.TrimPrefix(address, "http")+"/apis/subresources.kubevirt.io/v1/namespaces/"+ns+"/datavolumes/sent-root/upload?size=5"))
	if got != "refused" {
		b.t.Errorf("an upload from another site's page: %s", got)
	}
}
