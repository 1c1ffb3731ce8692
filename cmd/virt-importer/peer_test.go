package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// servingPod is a pod that serves a disk with such content.
func servingPod(t *testing.T, content []byte) (p *pod, peerAddress string) {
	t.Helper()
	p, peerAddress = newPod(t, ""), freeAddress(t)
	p.task = importer.Task{Serve: &importer.Serve{}}
	p.flags = []string{"-claim", p.path("disk/disk.img"), "-peer", peerAddress}
	if err := os.WriteFile(p.path("disk/disk.img"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	return p, peerAddress
}

// do asks a pod on its loopback address, and expects a status.
func (p *pod) do(method, path string, body []byte, status int) ([]byte, error) {
	request, err := http.NewRequest(method, "http://"+p.listen+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != status {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return text, err
}

// introduce tells one pod of another, as virt-controller does.
func introduce(of, to *pod, address string) error {
	text, err := of.do("GET", importer.IdentityPath, nil, http.StatusOK)
	if err != nil {
		return err
	}
	var identity importer.Identity
	if err := json.Unmarshal(text, &identity); err != nil {
		return err
	}
	told, err := json.Marshal(importer.Peer{Identity: identity, Address: address})
	if err != nil {
		return err
	}
	_, err = to.do("PUT", importer.PeerPath, told, http.StatusNoContent)
	return err
}

// TestKilledCopyOfADiskGoesOn: one pod copies another's disk. Both are killed again and again, and each process has another
// key. The percentage does not fall, and the disk is the same in the end.
func TestKilledCopyOfADiskGoesOn(t *testing.T) {
	t.Parallel()
	const tries = 5 // a disk may be copied before the test comes to its kills
	for range tries {
		kills := killedClaim(t)
		if kills >= 4 || t.Failed() {
			return
		}
		t.Logf("the pods were killed %d times", kills)
	}
	t.Errorf("the pods were killed too seldom, %d times", tries)
}

// killedClaim says how often a pod was killed.
func killedClaim(t *testing.T) (kills int) {
	t.Helper()
	raw := make([]byte, 48*mib)
	random := rand.NewChaCha8([32]byte{5})
	_, _ = random.Read(raw[3*mib : 45*mib])
	copy(raw, "QFI\xfb") // a guest may write anything
	from, address := servingPod(t, raw)
	to := newPod(t, "")
	to.task.Source, to.task.Permitted = importer.Source{Claim: &importer.Claim{}}, nil
	to.flags = []string{"-segment", "1048576"}
	serving, copying := from.start(), to.start()
	var last importer.Progress
	served := false // the pod that serves has said that it does
	copied := make(chan error, 1)
	go func() { copied <- copying.Wait() }()
	for gained := time.Now(); ; {
		if time.Since(gained) > testkit.Patience {
			t.Fatalf("the copy does not go on: %+v: %s", last, copying.Stderr)
		}
		// A pod that has just been killed answers nothing yet.
		_ = errors.Join(introduce(to, from, ""), introduce(from, to, address))
		if p, err := to.progress(); err == nil {
			if p.Done < last.Done || p.Anew > 0 {
				t.Errorf("progress went from %+v to %+v", last, p)
			}
			if p.Done > last.Done {
				gained = time.Now()
			}
			last = p
		}
		if p, err := from.progress(); err == nil && p.Done > 0 {
			served = true
		}
		var err error
		select {
		case err = <-copied:
		case <-time.After(time.Millisecond):
			if kills < 8 && last.Done > int64(kills+1)*4*mib {
				if kills++; kills%2 == 1 {
					_ = copying.Process.Kill()
				} else {
					_ = serving.Process.Kill()
					_ = serving.Wait()
					serving = from.start()
				}
			}
			continue
		}
		if err == nil {
			break
		}
		if copying.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%v: %s", err, copying.Stderr)
		}
		copying = to.start()
		go func() { copied <- copying.Wait() }()
	}
	checkDisk(t, to, raw)
	// Its last process may have come when all was copied.
	if p, err := from.progress(); err != nil || p.Total != int64(len(raw)) || !served && p.Done == 0 {
		t.Errorf("progress of the pod that serves: %+v, %v", p, err)
	}
	_ = serving.Process.Signal(syscall.SIGTERM)
	if err := serving.Wait(); err != nil {
		t.Errorf("the pod that serves ends: %v: %s", err, serving.Stderr)
	}
	return kills
}

// TestExitOfAPodThatCannotServe: what the kubelet sees of a pod that cannot serve.
func TestExitOfAPodThatCannotServe(t *testing.T) {
	t.Parallel()
	p, _ := servingPod(t, nil)
	if err := errors.Join(os.Remove(p.path("disk/disk.img")), os.Symlink("/etc/passwd", p.path("disk/disk.img"))); err != nil {
		t.Fatal(err)
	}
	err := p.start().Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ends by %v", err)
	}
	if text, err := os.ReadFile(p.path("termination")); err != nil || !strings.HasPrefix(string(text), "serve the claim: ") || !strings.Contains(string(text), "symbolic link") {
		t.Errorf("the reason is %q, %v", text, err)
	}
}

// TestUploadIsAnsweredWhenItIsOnTheDisk: an image that is sent is on the disk when the process has ended, and its sender was answered.
// A process that is killed while the image comes begins anew.
func TestUploadIsAnsweredWhenItIsOnTheDisk(t *testing.T) {
	t.Parallel()
	file, raw := image(t)
	pod := newPod(t, "")
	pod.task.Source = importer.Source{Upload: &importer.Upload{}}
	// send waits until the pod listens. It sends half of an image that is to be cut off.
	send := func(body io.Reader) (*http.Response, error) {
		testkit.Eventually(t, "the pod", func() error { _, err := pod.progress(); return err })
		request, err := http.NewRequest("PUT", "http://"+pod.listen+importer.UploadPath, body)
		if err != nil {
			t.Fatal(err)
		}
		request.ContentLength = int64(len(file))
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
		}
		return response, err
	}
	first := pod.start()
	half, rest := io.Pipe()
	go func() {
		_, _ = rest.Write(file[:len(file)/2])
		for end := time.Now().Add(testkit.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if p, err := pod.progress(); err == nil && p.Done > 0 {
				break
			}
		}
		_ = first.Process.Kill()
		rest.CloseWithError(io.ErrUnexpectedEOF)
	}()
	if response, err := send(half); err == nil {
		t.Errorf("half an image is answered %s", response.Status)
	}
	if err := first.Wait(); err == nil {
		t.Error("the first process is not killed")
	}
	cmd := pod.start()
	response, err := send(bytes.NewReader(file))
	if err != nil || response.StatusCode != http.StatusNoContent {
		t.Errorf("the whole image is answered %v, %v", response, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, cmd.Stderr)
	}
	checkDisk(t, pod, raw)
}
