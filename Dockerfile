# An image with nothing in it but the node: the binary is built on the host
# ("make image"), so that no registry is needed. Dockerfile.source builds it in
# a container, for people without Go. The build context is dist/.
FROM scratch
COPY node /node
# Empty; gives the volume an owner that the node runs as.
COPY --chown=65532:65532 data /data
USER 65532:65532
VOLUME /data
ENV WRIT_DIR=/data
# gRPC, HTTP, gossip (TCP and UDP), Raft.
EXPOSE 7400 7401 7402 7402/udp 7403
# The exec form: the node itself is process 1 and gets SIGTERM.
ENTRYPOINT ["/node"]
CMD ["serve"]
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["/node", "health"]
